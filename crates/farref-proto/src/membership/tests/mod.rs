//! The law book of membership, on nodes joined by queues that the test empties by hand. What deaths do
//! to references and contexts, and the laws of quiescence, are in the tests of [`crate::node`].

mod bounds;
mod group;
mod hostile;
mod made_up;
mod splits;
mod words;

use proptest::prelude::*;

use super::*;
use crate::event::Event;
use crate::ids::Incarnation;
use crate::outbox::Outbox;
use group::*;

fn gone(n: usize, departure: Departure) -> Event<()> {
    Event::Gone {
        node: id(n),
        departure,
    }
}

fn settled(event: &Event<()>) -> bool {
    matches!(event, Event::Settled(_))
}

/// ME-4: a member that has not said the newcomer back keeps it out.
#[test]
fn a_newcomer_is_known_to_all_before_it_is_welcome() {
    for slow in [B, C] {
        let mut group = Group::new(3);
        let newcomer = group.join(id(D), A);
        group.deliver_all_but(|from, _| from == id(slow));
        assert_eq!(group.phase(newcomer), Phase::Joining);
        for n in [A, B, C] {
            assert!(!group.view(n).is_member(id(D)), "nobody calls it yet");
        }
        group.deliver_all();
        assert_eq!(group.phase(newcomer), Phase::Member);
        let welcomed = group.events(newcomer);
        assert!(welcomed.contains(&Event::Welcomed));
        for n in [A, B, C] {
            assert!(group.events(n).contains(&Event::Joined(id(D))));
        }
        assert_eq!(group.members(newcomer), [id(A), id(B), id(C), id(D)]);
        group.assert_agreed();
    }
}

/// S3: the sponsor dies before it has let the newcomer in; another lets it in.
#[test]
fn a_newcomer_may_ask_another_sponsor() {
    let mut group = Group::new(3);
    let newcomer = group.join(id(D), A);
    group.deliver(newcomer, A);
    group.deliver(A, B);
    group.crash(A);
    group.suspect(B, A);
    group.ask(newcomer, C);
    group.deliver_all();
    assert_eq!(group.phase(newcomer), Phase::Member);
    assert_eq!(group.members(C), [id(B), id(C), id(D)]);
    group.assert_agreed();
}

/// S3
#[test]
fn two_may_join_at_once_through_different_sponsors() {
    let mut group = Group::new(2);
    group.join(id(C), A);
    group.join(id(D), B);
    group.deliver_all();
    assert_eq!(group.members(C), [id(A), id(B), id(C), id(D)]);
    group.assert_agreed();
}

/// S3: a newcomer that dies on the threshold keeps nobody waiting.
#[test]
fn a_newcomer_that_dies_while_it_joins_is_forgotten() {
    for progress in 0..4 {
        let mut group = Group::new(3);
        let newcomer = group.join(id(D), A);
        for _ in 0..progress {
            if let Some(&pair) = group.busy().first() {
                group.bring(pair);
            }
        }
        group.crash(newcomer);
        group.suspect(A, newcomer);
        group.deliver_all();
        assert_eq!(group.members(A), [id(A), id(B), id(C)]);
        group.assert_agreed();
    }
}

/// ME-1, F3: the new life takes the place of the old one, which is dead by that.
#[test]
fn a_return_with_a_new_incarnation_evicts_the_old() {
    let mut group = Group::new(3);
    let reborn = NodeId::new(1, 2);
    group.join(reborn, C);
    group.deliver_all();
    for n in [A, C] {
        let events = group.events(n);
        let at = |wanted: &Event<()>| events.iter().position(|event| event == wanted).unwrap();
        assert!(at(&gone(B, Departure::Died)) < at(&Event::Joined(reborn)));
        assert!(events.contains(&Event::Settled(id(B))));
        assert!(group.view(n).is_gone(id(B)) && group.view(n).is_member(reborn));
    }
    group.assert_agreed();
}

/// ME-6: a newcomer cannot reach a member, hears it after all, and is let in: nobody is accused.
#[test]
fn a_newcomer_reports_nobody_whom_it_has_heard_since() {
    let mut group = Group::new(3);
    let newcomer = group.join(id(D), A);
    group.deliver_all_but(|from, _| from == id(C));
    group.suspect(newcomer, B);
    let (entries, ask) = (
        vec![(WorkerId(1), Standing::of(id(B), Status::Alive))],
        Some(Digest(1)),
    );
    group
        .on(newcomer, |node, out| {
            node.handle(id(B), Control::View { entries, ask }, out)
        })
        .unwrap();
    group.deliver_all();
    assert_eq!(group.members(newcomer), [id(A), id(B), id(C), id(D)]);
    group.assert_agreed();
}

/// ME-4: a sponsor that knows a newcomer only from its own welcome, whose sender died before it told the
/// others, tells them itself before it lets the newcomer in.
#[test]
fn a_sponsor_that_knows_a_newcomer_from_its_own_welcome_tells_all_first() {
    let mut group = Group::new(2);
    let first = group.join(id(C), B);
    group.deliver(first, B);
    group.deliver(B, A);
    group.deliver(A, first);
    group.deliver(first, A);
    group.deliver(A, B);
    // B has given its word on the first when it hears of the second, which A has not heard of when it settles the first.
    let second = group.join(id(D), B);
    group.deliver(second, B);
    group.deliver(B, A);
    group.deliver(A, B);
    while !group.pending(B, first).is_empty() {
        group.deliver(B, first);
    }
    assert_eq!(group.phase(first), Phase::Member);
    assert!(group.view(first).is_live(id(D)) && !group.view(A).is_live(id(D)));
    // The rest of what B said is lost with it.
    group.crash(B);
    group.lose(B, A);
    group.lose(B, second);
    group.ask(second, first);
    group.deliver(second, first);
    let welcomed = |control: &Control| matches!(control, Control::Welcome(_));
    assert!(!group.pending(first, second).iter().any(welcomed));
    for n in [A, C] {
        group.suspect(n, B);
    }
    group.deliver_all();
    assert_eq!(group.phase(second), Phase::Member);
    group.assert_agreed();
}

/// ME-1: nothing brings an old life back, whoever says so.
#[test]
fn nobody_comes_back_from_the_dead() {
    let mut group = Group::new(3);
    group.crash(B);
    group.suspect(A, B);
    group.deliver_all();
    let before = group.view(C).clone();
    for status in [Status::Joining, Status::Alive, Status::Left] {
        let entries = vec![(WorkerId(1), Standing::of(id(B), status))];
        let ask = None;
        group
            .on(C, |node, out| {
                node.handle(id(A), Control::View { entries, ask }, out)
            })
            .unwrap();
    }
    assert_eq!(*group.view(C), before);
    group.assert_agreed();
}

/// ME-2: the dead are not listened to.
#[test]
fn a_suspicion_of_the_dead_is_not_heard() {
    let mut group = Group::new(3);
    group.suspect(C, A);
    let late = group.pending(C, B);
    assert_eq!(late, [Control::Suspect(id(A))]);
    group.suspect(A, C);
    group.deliver(A, B);
    group.deliver_all();
    assert_eq!(group.members(B), [id(A), id(B)]);
}

/// S3: a leaver may go when all know; the others see it leave, not die.
#[test]
fn a_leaver_departs_when_all_know() {
    let mut group = Group::new(3);
    group.on(B, |node, out| node.leave(out));
    assert_eq!(group.phase(B), Phase::Leaving);
    group.deliver_all_but(|from, _| from == id(C));
    assert_eq!(group.phase(B), Phase::Leaving, "C has not said it back");
    group.deliver_all();
    assert_eq!(group.phase(B), Phase::Departed);
    assert_eq!(group.events(B).last(), Some(&Event::Departed));
    for n in [A, C] {
        assert_eq!(
            group.events(n),
            [gone(B, Departure::Left), Event::Settled(id(B))]
        );
    }
    group.assert_agreed();
}

/// S3: a leaver waits neither for the dead nor for those who refuse it already.
#[test]
fn a_leaver_does_not_wait_for_those_it_cannot_reach() {
    for refused in [true, false] {
        let mut group = Group::new(3);
        group.crash(C);
        group.on(B, |node, out| node.leave(out));
        group.deliver_all();
        assert_eq!(group.phase(B), Phase::Leaving);
        if refused {
            group.on(B, |node, out| node.refused(id(C), out));
        } else {
            group.suspect(B, C);
        }
        assert_eq!(group.phase(B), Phase::Departed);
        assert!(group.events(B).contains(&Event::Departed));
    }
}

/// Whoever resigns is out at once, and the others see it leave; whoever refuses it hears so from them.
#[test]
fn one_that_resigns_is_out_and_everybody_else_stays() {
    for refusing in [A, B] {
        let mut group = Group::new(3);
        let newcomer = group.join(id(D), C);
        group.deliver_all();
        for n in [A, B, C] {
            group.events(n);
        }
        group.on(newcomer, |node, out| node.resign(id(refusing), out));
        assert_eq!(group.phase(newcomer), Phase::Evicted);
        assert!(group.events(newcomer).contains(&Event::Evicted));
        assert!(
            !group.busy().contains(&(id(D), id(refusing))),
            "to the one that does not listen nothing is said"
        );
        // What the newcomer would hear is lost.
        group.crash(newcomer);
        group.deliver_all();
        for n in [A, B, C] {
            assert_eq!(group.members(n), [id(A), id(B), id(C)]);
            assert!(group.nodes[n].membership().is_settled());
        }
        assert!(group.events(C).contains(&gone(D, Departure::Left)));
        group.assert_agreed();
    }
}

/// A leaver that finds that a member refuses it does not wait for that one.
#[test]
fn a_leaver_does_not_wait_for_one_that_refuses_it() {
    let mut group = Group::new(3);
    let newcomer = group.join(id(D), C);
    group.deliver_all();
    group.on(newcomer, |node, out| node.leave(out));
    let refusing = |from, to| from == id(D) && to == id(B);
    group.deliver_all_but(refusing);
    assert_eq!(group.phase(newcomer), Phase::Leaving);
    group.on(newcomer, |node, out| node.resign(id(B), out));
    assert_eq!(group.phase(newcomer), Phase::Departed);
    group.lose(newcomer, B);
    group.crash(newcomer);
    group.deliver_all();
    group.assert_agreed();
}

/// F10: what a newcomer has found out before it was let in it does not bring before the others when it resigns: the leader
/// would declare the one dead that refuses it.
#[test]
fn one_that_resigns_accuses_nobody() {
    let mut group = Group::new(3);
    let newcomer = group.join(id(D), A);
    group.suspect(newcomer, C);
    let welcome = loop {
        group.deliver_all_but(|from, to| from == id(A) && to == id(D));
        match group.pending(A, newcomer).swap_remove(0) {
            welcome @ Control::Welcome(_) => break welcome,
            _ => group.deliver(A, newcomer),
        }
    };
    // Its driver acts on being let in before anything that follows from that is sent.
    group.on(newcomer, |node, out| {
        node.handle(id(A), welcome, out).unwrap();
        node.resign(id(C), out);
    });
    assert_eq!(group.phase(newcomer), Phase::Evicted);
    group.lose(A, newcomer);
    group.crash(newcomer);
    group.deliver_all();
    assert_eq!(group.members(C), [id(A), id(B), id(C)]);
    group.assert_agreed();
}

/// ME-7, F10: another life of the first worker has been let in, and C and it cannot reach each other. C was there before: it is
/// the newcomer that goes, though its number is lower. If they have met, the lower number stays.
#[test]
fn of_two_who_have_never_met_the_one_stays_that_was_there_before() {
    for have_met in [false, true] {
        let mut group = Group::new(3);
        group.crash(A);
        let again = NodeId::new(0, 2);
        let newcomer = group.join(again, B);
        let apart = [(again, id(C)), (id(C), again)];
        group.deliver_all_but(|from, to| apart.contains(&(from, to)));
        assert_eq!(group.phase(newcomer), Phase::Member);
        if have_met {
            group
                .on(newcomer, |node, out| {
                    node.handle(id(C), Control::Farewell, out)
                })
                .unwrap();
        }
        group.suspect(C, newcomer);
        group.deliver_all_but(|from, to| apart.contains(&(from, to)));
        let [stays, goes] = match have_met {
            false => [id(C), again],
            true => [again, id(C)],
        };
        assert!(group.view(B).is_member(stays) && group.view(B).is_gone(goes));
        assert_eq!(group.phase(newcomer) == Phase::Member, have_met);
    }
}

/// Nobody resigns who is not in.
#[test]
fn one_that_is_not_in_does_not_resign() {
    let mut group = Group::new(2);
    let newcomer = group.join(id(C), A);
    group.on(newcomer, |node, out| node.resign(id(B), out));
    assert_eq!(group.phase(newcomer), Phase::Joining);
    group.deliver_all();
    assert_eq!(group.phase(newcomer), Phase::Member);
}

/// Two leave at once.
#[test]
fn two_may_leave_at_once() {
    let mut group = Group::new(3);
    group.on(A, |node, out| node.leave(out));
    group.on(B, |node, out| node.leave(out));
    group.deliver_all();
    assert_eq!(
        (group.phase(A), group.phase(B)),
        (Phase::Departed, Phase::Departed)
    );
    assert_eq!(group.members(C), [id(C)]);
    assert!(group.nodes[C].membership().is_settled());
}

/// The link between B and C is broken; each suspects the other, and one of them goes.
#[test]
fn a_bad_link_costs_one_member_and_not_two() {
    for first in [B, C] {
        let mut group = Group::new(4);
        let second = B + C - first;
        group.suspect(first, second);
        group.suspect(second, first);
        assert_eq!(group.pending(first, A), [Control::Suspect(id(second))]);
        group.deliver(first, A);
        group.deliver_all_but(|from, to| {
            [from, to] == [id(B), id(C)] || [to, from] == [id(B), id(C)]
        });
        assert_eq!(group.members(A), group.members(D));
        assert_eq!(group.members(A).len(), 3);
        assert!(group.view(A).is_member(id(first)) && group.view(A).is_gone(id(second)));
    }
}

/// The same when one end of the bad link is the leader: the one with the lower number stays.
#[test]
fn a_bad_link_to_the_leader_costs_one_member_and_not_two() {
    for first in [A, B] {
        let mut group = Group::new(4);
        let second = A + B - first;
        group.suspect(first, second);
        group.suspect(second, first);
        group.deliver_all_but(|from, to| {
            [from, to] == [id(A), id(B)] || [to, from] == [id(A), id(B)]
        });
        for n in [A, C, D] {
            assert_eq!(group.members(n), [id(A), id(C), id(D)], "w{n}");
        }
    }
}

/// ME-7: of the accused and the accuser the lower number stays, whoever says what: nobody is declared dead on the
/// word that it has accused somebody who ranks after it.
#[test]
fn the_accused_gives_way_to_a_lower_number() {
    let mut group = Group::new(3);
    for by in [A, C] {
        let accused = Control::Accused(id(by));
        group
            .on(C, |node, out| node.handle(id(B), accused, out))
            .unwrap();
        assert_eq!(group.phase(C), Phase::Member);
        assert_eq!(group.members(C), [id(A), id(B), id(C)]);
    }
    let accused = Control::Accused(id(C));
    group
        .on(A, |node, out| node.handle(id(B), accused, out))
        .unwrap();
    assert_eq!(group.members(A), [id(A), id(B)]);
}

/// A leader that is really dead is buried as soon as a second member cannot reach it.
#[test]
fn a_dead_leader_is_declared_dead_when_another_has_confirmed_it() {
    let mut group = Group::new(4);
    group.crash(A);
    group.suspect(B, A);
    assert_eq!(
        group.members(B).len(),
        4,
        "B might be the one that is cut off"
    );
    group.deliver_all();
    assert_eq!(group.members(B), [id(B), id(C), id(D)]);
    group.assert_agreed();
}

/// A suspicion is told once to one leader, and again to the next.
#[test]
fn a_new_leader_is_told_of_the_suspicions() {
    let mut group = Group::new(4);
    group.crash(C);
    group.suspect(D, C);
    group.suspect(D, C);
    assert_eq!(group.pending(D, A), [Control::Suspect(id(C))], "once");
    group.crash(A);
    group.suspect(B, A);
    group.deliver_all();
    assert_eq!(group.members(B), [id(B), id(D)], "D has told B");
    group.assert_agreed();
}

/// Whoever is the last that can be reached acts on its suspicions itself.
#[test]
fn the_lowest_that_can_be_reached_decides() {
    let mut group = Group::new(3);
    group.crash(A);
    group.crash(B);
    // It tells A, finds A dead as well, and then there is nobody left to ask.
    group.suspect(C, B);
    assert_eq!(group.members(C), [id(C)]);
    let events = group.events(C);
    assert!(events.contains(&Event::Settled(id(A))) && events.contains(&Event::Settled(id(B))));
    group.assert_agreed();
}

/// ME-7: a message that tells of a death and of a newcomer is taken in as a whole, in whatever order it
/// names them, before anybody is declared dead because nobody is left to ask: the newcomer is.
#[test]
fn suspicions_are_acted_on_when_all_of_a_message_is_known() {
    let mut group = Group::new(3);
    group.suspect(C, A);
    assert_eq!(group.pending(C, B), [Control::Suspect(id(A))]);
    let newcomer = id(D);
    let entries = [(id(B), Status::Dead), (newcomer, Status::Alive)];
    let entries = entries.map(|(node, status)| (node.worker, Standing::of(node, status)));
    let view = Control::View {
        entries: entries.to_vec(),
        ask: None,
    };
    let mut out = Outbox::new();
    group.nodes[C].handle(newcomer, view, &mut out).unwrap();
    assert!(group.view(C).is_member(id(A)), "D can be asked");
    let said: Vec<_> = std::iter::from_fn(|| out.pop_control()).collect();
    assert!(
        said.contains(&(newcomer, Control::Suspect(id(A)))),
        "{said:?}"
    );
}

/// ME-3: a departure is settled when every member has said it back, and not before.
#[test]
fn a_departure_is_settled_when_all_have_said_it_back() {
    for slow in [B, C] {
        let mut group = Group::new(4);
        group.crash(D);
        group.suspect(A, D);
        assert_eq!(
            group.nodes[A].membership().awaited(),
            BTreeSet::from([id(B), id(C)])
        );
        group.deliver_all_but(|from, _| from == id(slow));
        assert_eq!(group.events(A), [gone(D, Departure::Died)]);
        assert_eq!(
            group.nodes[A].membership().awaited(),
            BTreeSet::from([id(slow)])
        );
        group.deliver_all();
        for n in [A, B, C] {
            assert!(group.events(n).iter().any(settled), "w{n}");
        }
        group.assert_agreed();
    }
}

/// ME-3, ME-5: one message says that the leader has left and that a suspect is in. The suspect is declared dead
/// because of it, and whoever said that it is in has to give its word like all others.
#[test]
fn a_death_is_not_settled_without_the_word_of_whoever_said_that_it_lives() {
    let mut group = Group::new(4);
    let reborn = NodeId::new(2, 2);
    let said = |node: NodeId, status| (node.worker, Standing::of(node, status));
    let tell = |group: &mut Group, from: usize, entries| {
        let ask = None;
        let view = Control::View { entries, ask };
        let told = group.on(B, |node, out| node.handle(id(from), view, out));
        told.unwrap();
    };
    tell(&mut group, A, vec![said(reborn, Status::Joining)]);
    group.on(B, |node, out| node.suspect(reborn, out));
    assert!(group.pending(B, A).contains(&Control::Suspect(reborn)));
    group.events(B);

    let entries = vec![said(id(A), Status::Left), said(reborn, Status::Alive)];
    tell(&mut group, D, entries);
    assert!(group.view(B).is_gone(reborn), "B is the leader now");
    assert!(!group.view(D).is_gone(reborn), "D takes its frames");
    assert!(!group.events(B).iter().any(settled));
    group.deliver(B, D);
    group.deliver(D, B);
    assert!(group.events(B).contains(&Event::Settled(reborn)));
}

/// ME-5: when one departs whose word is awaited, all are asked again, and what was nearly settled waits for that.
#[test]
fn departures_settle_together() {
    let mut group = Group::new(4);
    group.crash(D);
    group.suspect(A, D);
    group.deliver_all_but(|_, to| to == id(A));
    // All but C's word on D are back when C dies, too.
    group.crash(C);
    group.deliver(B, A);
    assert_eq!(group.events(A), [gone(D, Departure::Died)]);
    group.suspect(A, C);
    assert_eq!(
        group.events(A),
        [gone(C, Departure::Died)],
        "C's death is not settled"
    );
    group.deliver_all();
    assert_eq!(
        group.events(A),
        [Event::Settled(id(D)), Event::Settled(id(C))]
    );
    group.assert_agreed();
}

/// A member that dies while its word is awaited is not waited for.
#[test]
fn the_words_of_the_dead_are_not_awaited() {
    let mut group = Group::new(3);
    let newcomer = group.join(id(D), A);
    group.deliver(newcomer, A);
    group.crash(C);
    group.deliver_all();
    assert_eq!(group.phase(newcomer), Phase::Joining);
    group.suspect(A, C);
    group.deliver_all();
    assert_eq!(group.phase(newcomer), Phase::Member);
    group.assert_agreed();
}

/// A member that the others have given up learns it from any of them.
#[test]
fn a_member_that_was_declared_dead_is_evicted_when_it_hears_of_it() {
    let mut group = Group::new(3);
    group.suspect(A, B);
    group.deliver_all();
    assert_eq!(group.phase(B), Phase::Member, "nobody has told it");
    let (by, over) = (
        id(C),
        vec![(WorkerId(1), Standing::of(id(B), Status::Dead))],
    );
    let view = Control::View {
        entries: over,
        ask: None,
    };
    group.on(B, |node, out| node.handle(by, view, out)).unwrap();
    assert_eq!(group.phase(B), Phase::Evicted);
    assert_eq!(group.events(B), [Event::Evicted]);
}

/// The number of a view is the same for the same view and grows with each change.
#[test]
fn the_number_of_a_view_grows() {
    let mut view = View::of([id(A), id(B)]);
    let mut last = view.number();
    assert_eq!(last, View::of([id(B), id(A)]).number());
    for (incarnation, status) in [
        (1, Status::Left),
        (1, Status::Dead),
        (2, Status::Joining),
        (2, Status::Alive),
        (7, Status::Dead),
    ] {
        let incarnation = Incarnation(incarnation);
        let standing = Standing {
            incarnation,
            status,
        };
        assert!(view.raise(WorkerId(1), standing).is_some());
        assert!(view.raise(WorkerId(1), standing).is_none());
        assert!(view.number() > last);
        last = view.number();
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Crash { n: usize },
    Leave { n: usize },
    Join { worker: usize, sponsor: usize },
    Deliver { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let n = 1usize..5;
    prop_oneof![
        1 => n.clone().prop_map(|n| Step::Crash { n }),
        1 => n.clone().prop_map(|n| Step::Leave { n }),
        1 => (n, 0usize..5).prop_map(|(worker, sponsor)| Step::Join { worker, sponsor }),
        8 => any::<usize>().prop_map(|which| Step::Deliver { which }),
    ]
}

proptest! {
    #![proptest_config(crate::random_cases::random_cases(50, 500))]

    /// S3, ME-1: members come, go and die at random over queues that move at random; in the end all
    /// that are left agree and have settled everything.
    #[test]
    fn whoever_is_left_agrees_in_the_end(steps in prop::collection::vec(step(), 0..60)) {
        let mut group = Group::new(5);
        let mut crashed = Vec::new();
        for step in steps {
            match step {
                Step::Crash { n } if !group.crashed[n] => {
                    crashed.push(group.id(n));
                    group.crash(n);
                }
                Step::Leave { n } if !group.crashed[n] => group.on(n, |node, out| node.leave(out)),
                Step::Join { worker, sponsor } if worker != sponsor && group.crashed[worker] => {
                    let next = group.id(worker).incarnation.0 + 1;
                    group.join(NodeId::new(worker as u32, next), sponsor);
                }
                Step::Deliver { which } => {
                    let busy = group.busy();
                    if let Some(at) = which.checked_rem(busy.len()) {
                        group.bring(busy[at]);
                    }
                }
                _ => {}
            }
        }
        group.deliver_all();
        // Everyone that is up finds out whom it cannot reach; newcomers ask somebody who is there.
        for _ in 0..3 {
            for n in 0..5 {
                if group.crashed[n] {
                    continue;
                }
                for &dead in &crashed {
                    group.on(n, |node, out| node.suspect(dead, out));
                }
                if group.phase(n) == Phase::Joining {
                    group.ask(n, A);
                }
            }
            group.deliver_all();
        }
        for n in 0..5 {
            let departed = matches!(group.phase(n), Phase::Departed | Phase::Evicted);
            group.crashed[n] |= departed;
            prop_assert!(group.crashed[n] || group.phase(n) == Phase::Member, "w{} is {:?}", n, group.phase(n));
        }
        group.assert_agreed();
    }
}
