//! Proves that the simulator notices: every rule that is broken on purpose is caught.
//!
//! Run with `--nocapture` for the table in `docs/protocol.md`.

use std::time::Duration;

use farref_proto::{
    CallHead, ContextError, ContextId, Control, Creation, Digest, Event, Fingerprint, Membership,
    MessageId, Mutation, Node, NodeConfig, NodeId, Outbox, Phase, Standing, Status, Target, Time,
    TooFew, Want,
};
use farref_sim::{Config, Mutant, run};

/// Seeds that a mutant may survive before it counts as unnoticed.
const MOST_SEEDS: u64 = 6_000;

/// Broken rules that only the model checker can notice: here sessions let no duplicate through, and
/// the connections of a departed worker are closed.
const FOR_THE_MODEL_CHECKER: &[Mutation] = &[Mutation::NoEcho, Mutation::KeepListening];

/// Broken rules that take several departures, joins or lanes in one order to do harm, which hardly any
/// seed has. A node is asked directly (below).
const FOR_A_SCRIPT: &[Mutation] = &[
    Mutation::ForgetClosedContext,
    Mutation::WelcomedKnowsAll,
    Mutation::KnownWhatever,
    Mutation::ActUntold,
    Mutation::AbandonedCallRunsOn,
    Mutation::ShutdownIgnoresView,
    Mutation::AccusedAlwaysStays,
    Mutation::RoundGoesOn,
    Mutation::StrangersToldNothing,
    Mutation::MembersUnmet,
    Mutation::OutdatedUncorrected,
    Mutation::LetInAtRest,
    Mutation::AdoptWithinQuota,
    Mutation::GiveUpAloud,
    Mutation::TellersUnforgiven,
    Mutation::ToldAgain,
    Mutation::KnockCounts,
    Mutation::NewcomersStay,
];

/// Broken rules that it takes a relay's death to notice.
const UNDER_PRESSURE: &[Mutation] = &[Mutation::NoAdoption, Mutation::MergePastOthers];

/// Broken rules of those who need a majority of their group.
const WITH_A_MAJORITY: &[Mutation] = &[
    Mutation::HalfIsEnough,
    Mutation::LossesForgotten,
    Mutation::SettledLost,
    Mutation::LeaversLost,
    Mutation::LeavesUncounted,
    Mutation::JoiningLeft,
    Mutation::JoiningUncounted,
    Mutation::OneselfUncounted,
];

fn first_violation(mutant: Mutant) -> Option<(u64, &'static str)> {
    let mut config = Config::default();
    config.mutation = Some(mutant);
    config.relay_pressure = UNDER_PRESSURE
        .iter()
        .any(|&mutation| mutant == Mutant::Node(mutation));
    config.require_majority = WITH_A_MAJORITY
        .iter()
        .any(|&mutation| mutant == Mutant::Node(mutation));
    (0..MOST_SEEDS).find_map(|seed| {
        let failure = run(&config, seed).err()?;
        Some((seed + 1, failure.violation.guarantee))
    })
}

#[test]
fn every_broken_rule_is_noticed() {
    let nodes = Mutation::ALL
        .into_iter()
        .filter(|mutation| !FOR_THE_MODEL_CHECKER.contains(mutation))
        .filter(|mutation| !FOR_A_SCRIPT.contains(mutation));
    let sessions = [
        Mutant::SessionForgetsDuplicates,
        Mutant::SessionForgetsReplay,
    ];
    let mutants: Vec<Mutant> = nodes.map(Mutant::Node).chain(sessions).collect();
    let mut unnoticed = Vec::new();
    for mutant in mutants {
        match first_violation(mutant) {
            Some((seeds, guarantee)) => println!("{mutant:?}: {guarantee} after {seeds} seeds"),
            None => unnoticed.push(mutant),
        }
    }
    assert_eq!(unnoticed, [], "these broken rules went unnoticed");
}

const SPONSOR: NodeId = NodeId::new(0, 1);
const MEMBER: NodeId = NodeId::new(1, 1);
const DEAD: NodeId = NodeId::new(2, 1);
const ME: NodeId = NodeId::new(3, 1);
const NEXT: NodeId = NodeId::new(4, 1);

/// A member of a group.
fn member(me: NodeId, group: &[NodeId], mutation: Option<Mutation>) -> Node<()> {
    let membership = Membership::founding(me, group.iter().copied());
    let mut node = Node::new(me, membership, NodeConfig::default());
    if let Some(mutation) = mutation {
        node.mutate(mutation);
    }
    node
}

/// What somebody tells of a node.
fn view(of: NodeId, status: Status) -> Control {
    let entries = vec![(of.worker, Standing::of(of, status))];
    let ask = None;
    Control::View { entries, ask }
}

/// Tells a node several things, one after the other; what it says to them.
fn tell(node: &mut Node<()>, told: impl IntoIterator<Item = (NodeId, Control)>) -> Outbox<()> {
    let mut out = Outbox::new();
    for (from, control) in told {
        assert_eq!(node.handle(from, control, &mut out), Ok(()));
    }
    out
}

/// Somebody asks a node whether it knows what has this digest.
fn question(digest: Digest) -> Control {
    let (entries, ask) = (Vec::new(), Some(digest));
    Control::View { entries, ask }
}

/// Others know what a node knows, and say so.
fn give_word(node: &mut Node<()>, others: &[NodeId]) -> Outbox<()> {
    let known = Control::Known(node.membership().view().digest());
    tell(node, others.iter().map(|&other| (other, known.clone())))
}

fn controls(mut out: Outbox<()>) -> Vec<(NodeId, Control)> {
    std::iter::from_fn(|| out.pop_control()).collect()
}

/// A newcomer that has just been welcomed by a sponsor that knew of a death and of another newcomer; and
/// what it says first.
fn newcomer(mutation: Option<Mutation>) -> (Node<()>, Vec<(NodeId, Control)>) {
    let mut node = Node::new(ME, Membership::joining(ME), NodeConfig::default());
    if let Some(mutation) = mutation {
        node.mutate(mutation);
    }
    let known = [
        (SPONSOR, Status::Alive),
        (MEMBER, Status::Alive),
        (DEAD, Status::Dead),
        (NEXT, Status::Joining),
    ];
    let welcome = known.map(|(node, status)| (node.worker, Standing::of(node, status)));
    let mut out = Outbox::new();
    let welcomed = node.handle(SPONSOR, Control::Welcome(welcome.to_vec()), &mut out);
    assert_eq!(welcomed, Ok(()));
    let said = std::iter::from_fn(|| out.pop_control()).collect();
    (node, said)
}

/// ME-5: whoever asks has not heard of the death that this node was welcomed with.
#[test]
fn a_member_that_gives_its_word_on_what_it_does_not_know_is_noticed() {
    let says = |mutation| {
        let (mut node, _) = newcomer(mutation);
        let asked = Digest(7);
        let said = controls(tell(&mut node, [(MEMBER, question(asked))]));
        said.contains(&(MEMBER, Control::Known(asked)))
    };
    assert!(!says(None));
    assert!(says(Some(Mutation::KnownWhatever)));
}

/// ME-4: the member may not have heard of the next newcomer, which turns to this one.
#[test]
fn a_sponsor_that_believes_that_all_know_whom_it_knows_is_noticed() {
    let waits = |mutation| {
        let (mut node, _) = newcomer(mutation);
        let mut out = Outbox::new();
        assert_eq!(node.handle(NEXT, Control::Join, &mut out), Ok(()));
        let said: Vec<_> = std::iter::from_fn(|| out.pop_control()).collect();
        said.iter()
            .all(|(_, control)| !matches!(control, Control::Welcome(_)))
    };
    assert!(waits(None));
    assert!(!waits(Some(Mutation::WelcomedKnowsAll)));
}

/// RT-7: an owner that hears of an adoption has heard of the death before. The adopter may die in between, and then nobody
/// else tells it.
#[test]
fn an_adopter_that_does_not_tell_the_owner_of_the_death_is_noticed() {
    let tells = |mutation| {
        let mut node = member(ME, &[SPONSOR, MEMBER, DEAD, ME], mutation);
        let mut out = Outbox::new();
        let want = Want::Reference(Fingerprint(1));
        let creation = node.call(MEMBER, want, &[], None, &mut out);
        let Ok(Target::Stay(creation)) = creation.map(|head| head.target) else {
            panic!("a creation")
        };
        let handed = node.call(DEAD, Want::Answer, &[creation.share.rref], None, &mut out);
        assert!(handed.is_ok());
        let said = controls(tell(&mut node, [(SPONSOR, view(DEAD, Status::Dead))]));
        let to_owner = said.iter().filter(|(to, _)| *to == MEMBER);
        let kinds: Vec<_> = to_owner.map(|(_, control)| control.name()).collect();
        assert!(kinds.contains(&"adopt"), "{kinds:?}");
        kinds.starts_with(&["view", "adopt"])
    };
    assert!(tells(None));
    assert!(!tells(Some(Mutation::ActUntold)));
}

/// CT-3: a late call of the context is refused by whoever was told of the release.
#[test]
fn a_worker_that_forgets_which_contexts_were_released_is_noticed() {
    let remembers = |mutation: Option<Mutation>| {
        let mut node = member(ME, &[ME, SPONSOR], mutation);
        let context = ContextId::new(SPONSOR, 0);
        let cleanup = Control::ContextCleanup(vec![(context, 0)]);
        let told = node.handle(SPONSOR, cleanup, &mut Outbox::new());
        assert_eq!(told, Ok(()));
        node.check_context(context) == Err(ContextError::Closed { context })
    };
    assert!(remembers(None));
    assert!(!remembers(Some(Mutation::ForgetClosedContext)));
}

/// CT-1: two workers call this one in a context, and one of them dies. When the other is answered it is at rest.
#[test]
fn a_call_that_runs_on_without_its_caller_is_noticed() {
    let rests = |mutation| {
        let mut node = member(ME, &[SPONSOR, MEMBER, ME], mutation);
        let mut out = Outbox::new();
        let context = ContextId::new(SPONSOR, 0);
        let request = MessageId(0);
        let head = CallHead {
            target: Target::Answer(request),
            context: Some(context),
            carried: Vec::new(),
        };
        for caller in [SPONSOR, MEMBER] {
            assert!(node.receive_call(caller, &head, &mut out).is_ok());
        }
        tell(&mut node, [(SPONSOR, view(MEMBER, Status::Dead))]);
        assert!(matches!(
            node.answer(SPONSOR, request, &[], &mut out),
            Ok(Some(_))
        ));
        let done = Control::ContextDone(vec![(context, 1)]);
        controls(out).contains(&(SPONSOR, done))
    };
    assert!(rests(None));
    assert!(!rests(Some(Mutation::AbandonedCallRunsOn)));
}

/// QU-1: what a newcomer that came and went between the two looks has left behind is not in the reports.
#[test]
fn a_shutdown_that_does_not_mind_who_came_and_went_is_noticed() {
    let completes = |mutation| {
        let group = [SPONSOR, MEMBER];
        let [mut leader, mut other] = group.map(|me| member(me, &group, mutation));
        leader.shut_down();
        other.shut_down();
        let residue = other.residue();
        let mut now = Time::ZERO;
        let mut look = |leader: &mut Node<()>| {
            now += Duration::from_secs(1);
            leader.poll(now, &mut Outbox::new());
        };
        for round in [1, 2] {
            look(&mut leader);
            let activity = 0;
            let report = Control::Report {
                round,
                activity,
                residue,
            };
            tell(&mut leader, [(MEMBER, report)]);
        }
        for (from, said, others) in [
            (NEXT, Control::Join, &[MEMBER, NEXT][..]),
            (NEXT, view(NEXT, Status::Alive), &[MEMBER, NEXT]),
            (MEMBER, view(NEXT, Status::Dead), &[MEMBER]),
        ] {
            tell(&mut leader, [(from, said)]);
            give_word(&mut leader, others);
        }
        assert!(leader.membership().is_settled());
        look(&mut leader);
        leader.quiescence().is_complete()
    };
    assert!(!completes(None));
    assert!(completes(Some(Mutation::ShutdownIgnoresView)));
}

/// ME-7: of two members that cannot reach each other the lower number stays.
#[test]
fn an_accused_that_always_stays_is_noticed() {
    let gives_way = |mutation| {
        let mut node = member(ME, &[SPONSOR, MEMBER, ME], mutation);
        tell(&mut node, [(MEMBER, Control::Accused(SPONSOR))]);
        node.membership().view().is_member(SPONSOR)
    };
    assert!(gives_way(None));
    assert!(!gives_way(Some(Mutation::AccusedAlwaysStays)));
}

/// ME-5: the one whose word was awaited dies: what the first of the dead handed it may be on its way to a third.
#[test]
fn a_leader_that_goes_on_without_whoever_departs_is_noticed() {
    let waits = |mutation| {
        let mut node = member(SPONSOR, &[SPONSOR, MEMBER, DEAD, ME], mutation);
        let mut out = Outbox::new();
        node.suspect(DEAD, &mut out);
        give_word(&mut node, &[MEMBER]);
        node.suspect(ME, &mut out);
        let mut events = std::iter::from_fn(|| out.pop_event());
        events.all(|event| event != Event::Settled(DEAD))
    };
    assert!(waits(None));
    assert!(!waits(Some(Mutation::RoundGoesOn)));
}

/// ME-8: whoever leads now is of another group, and has never heard of this node.
#[test]
fn a_leader_of_another_group_that_is_told_nothing_is_noticed() {
    let tells = |mutation| {
        let mut node = member(ME, &[ME, NEXT], mutation);
        let out = tell(&mut node, [(NEXT, view(SPONSOR, Status::Alive))]);
        let own = (ME.worker, Standing::of(ME, Status::Alive));
        let told = |(to, control): (NodeId, Control)| {
            to == SPONSOR
                && matches!(control, Control::View { entries, .. } if entries.contains(&own))
        };
        controls(out).into_iter().any(told)
    };
    assert!(tells(None));
    assert!(!tells(Some(Mutation::StrangersToldNothing)));
}

/// ME-8: one that was let in by another group asks what only members ask.
#[test]
fn a_member_that_speaks_and_stays_unknown_is_noticed() {
    let meets = |mutation| {
        let mut node = member(MEMBER, &[SPONSOR, MEMBER], mutation);
        tell(&mut node, [(NEXT, question(Digest(7)))]);
        node.membership().view().is_member(NEXT)
    };
    assert!(meets(None));
    assert!(!meets(Some(Mutation::MembersUnmet)));
}

/// ME-9: somebody suspects one whose departure is settled here.
#[test]
fn outdated_words_that_go_uncorrected_are_noticed() {
    let corrects = |mutation| {
        let mut node = member(SPONSOR, &[SPONSOR, MEMBER, DEAD], mutation);
        let mut out = Outbox::new();
        node.suspect(DEAD, &mut out);
        give_word(&mut node, &[MEMBER]);
        let said = controls(tell(&mut node, [(MEMBER, Control::Suspect(DEAD))]));
        said.contains(&(MEMBER, view(DEAD, Status::Dead)))
    };
    assert!(corrects(None));
    assert!(!corrects(Some(Mutation::OutdatedUncorrected)));
}

/// QU-5: the leader's word that all know the newcomer comes behind its word that all is done.
#[test]
fn a_group_at_rest_that_lets_somebody_in_is_noticed() {
    let refuses = |mutation| {
        let mut node = member(MEMBER, &[SPONSOR, MEMBER], mutation);
        tell(&mut node, [(NEXT, Control::Join)]);
        let digest = node.membership().view().digest();
        let told = [
            (SPONSOR, question(digest)),
            (SPONSOR, Control::Finish),
            (SPONSOR, Control::Settled(digest)),
        ];
        let said = controls(tell(&mut node, told));
        said.iter()
            .all(|(_, control)| !matches!(control, Control::Welcome(_)))
    };
    assert!(refuses(None));
    assert!(!refuses(Some(Mutation::LetInAtRest)));
}

/// ME-10: a member that tells now and then of some who have died is not blamed for all of them.
#[test]
fn a_member_that_is_blamed_for_what_is_settled_is_noticed() {
    let blames = |mutation: Option<Mutation>| {
        let mut config = NodeConfig::default();
        config.max_unsettled = 4;
        let group = [SPONSOR, MEMBER];
        let mut node = Node::<()>::new(SPONSOR, Membership::founding(SPONSOR, group), config);
        if let Some(mutation) = mutation {
            node.mutate(mutation);
        }
        (10..30).any(|worker| {
            let dead = view(NodeId::new(worker, 1), Status::Dead);
            let told = node.handle(MEMBER, dead, &mut Outbox::new());
            give_word(&mut node, &[MEMBER]);
            told.is_err()
        })
    };
    assert!(!blames(None));
    assert!(blames(Some(Mutation::TellersUnforgiven)));
}

/// ME-11: a newcomer that was never heard is told nothing of a death at first, and so its word on that does not count.
#[test]
fn a_newcomer_whose_word_counts_though_it_was_told_nothing_is_noticed() {
    let settles = |mutation: Option<Mutation>| {
        let mut config = NodeConfig::default();
        config.max_unheard = 0;
        let group = [SPONSOR, MEMBER, DEAD];
        let mut node = Node::<()>::new(SPONSOR, Membership::founding(SPONSOR, group), config);
        if let Some(mutation) = mutation {
            node.mutate(mutation);
        }
        let told = [view(DEAD, Status::Dead), view(NEXT, Status::Joining)];
        let said = controls(tell(&mut node, told.map(|told| (MEMBER, told))));
        let asked = said.into_iter().find_map(|(to, control)| match control {
            Control::View { entries, ask } if to == NEXT && entries.is_empty() => ask,
            _ => None,
        });
        let asked = asked.expect("it is asked, and told nothing");
        // It says that it knows what it is asked, as all do who are joining.
        tell(&mut node, [(NEXT, Control::Known(asked))]);
        give_word(&mut node, &[MEMBER]);
        node.membership().is_settled()
    };
    assert!(!settles(None));
    assert!(settles(Some(Mutation::KnockCounts)));
}

/// ME-11: a member that does not answer is not told the same again and again.
#[test]
fn a_leader_that_repeats_itself_is_noticed() {
    let told = |mutation| {
        let mut node = member(SPONSOR, &[SPONSOR, MEMBER], mutation);
        let dead = (10..30).map(|worker| view(NodeId::new(worker, 1), Status::Dead));
        let said = controls(tell(&mut node, dead.map(|dead| (MEMBER, dead))));
        let entries = said.iter().map(|(_, control)| match control {
            Control::View { entries, .. } => entries.len(),
            _ => 0,
        });
        entries.sum::<usize>()
    };
    assert_eq!(told(None), 20);
    assert!(told(Some(Mutation::ToldAgain)) > 200);
}

/// ME-7: a member cannot reach this one, which was let in later and has never heard that one.
#[test]
fn a_newcomer_that_stays_for_its_number_is_noticed() {
    let goes = |mutation| {
        let mut node = Node::new(ME, Membership::joining(ME), NodeConfig::default());
        if let Some(mutation) = mutation {
            node.mutate(mutation);
        }
        let last = NodeId::new(9, 1);
        let group = [SPONSOR, last].map(|it| (it.worker, Standing::of(it, Status::Alive)));
        tell(&mut node, [(SPONSOR, Control::Welcome(group.to_vec()))]);
        tell(&mut node, [(SPONSOR, Control::Accused(last))]);
        node.membership().phase() == Phase::Evicted
    };
    assert!(goes(None));
    assert!(!goes(Some(Mutation::NewcomersStay)));
}

/// MJ-3: a worker that has lost half of its group tells nobody that the others are dead: they may well be alive.
#[test]
fn a_worker_that_gives_its_group_up_aloud_is_noticed() {
    let is_silent = |mutation: Option<Mutation>| {
        let mut config = NodeConfig::default();
        config.require_majority = true;
        let group = [SPONSOR, MEMBER, DEAD, ME];
        let mut node = Node::<()>::new(SPONSOR, Membership::founding(SPONSOR, group), config);
        if let Some(mutation) = mutation {
            node.mutate(mutation);
        }
        let mut out = Outbox::new();
        node.suspect(ME, &mut out);
        assert!(out.has_controls());
        node.suspect(DEAD, &mut out);
        let events: Vec<_> = std::iter::from_fn(|| out.pop_event()).collect();
        let too_few = TooFew { left: 2, of: 4 };
        assert!(events.ends_with(&[Event::Minority(too_few), Event::Evicted]));
        controls(out).is_empty()
    };
    assert!(is_silent(None));
    assert!(!is_silent(Some(Mutation::GiveUpAloud)));
}

/// RT-7: the creator adopts before its creation has arrived where no more values are waited for. What it adopted keeps the
/// value for whoever has it from the dead, when the creator has let go.
#[test]
fn an_adoption_that_is_turned_away_for_the_quota_is_noticed() {
    let keeps = |mutation: Option<Mutation>| {
        let group = [SPONSOR, MEMBER, DEAD];
        let mut config = NodeConfig::default();
        config.max_pending_owners = 0;
        let mut owner = Node::new(MEMBER, Membership::founding(MEMBER, group), config);
        if let Some(mutation) = mutation {
            owner.mutate(mutation);
        }
        let mut creator = member(SPONSOR, &group, None);
        let mut out = Outbox::new();
        let want = Want::Reference(Fingerprint(1));
        let creation = creator.call(MEMBER, want, &[], None, &mut out).unwrap();
        let Target::Stay(Creation { share, .. }) = creation.target else {
            panic!("a creation")
        };
        let handed = creator.call(DEAD, Want::Answer, &[share.rref], None, &mut out);
        assert!(handed.is_ok());
        creator.suspect(DEAD, &mut out);
        let said = controls(out);
        let to_owner = said.into_iter().filter(|(to, _)| *to == MEMBER);
        tell(&mut owner, to_owner.map(|(_, control)| (SPONSOR, control)));
        let mut out = Outbox::new();
        assert!(owner.receive_call(SPONSOR, &creation, &mut out).is_ok());
        owner.finish_creation(SPONSOR, share.rref, None, (), &mut out);
        tell(&mut owner, [(SPONSOR, Control::Release(vec![share]))]);
        owner.ref_counters().owners == 1
    };
    assert!(keeps(None));
    assert!(!keeps(Some(Mutation::AdoptWithinQuota)));
}
