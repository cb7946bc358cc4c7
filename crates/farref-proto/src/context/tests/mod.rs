//! The law book of contexts, on tables joined by queues that the test empties by hand.

mod tables;

use proptest::prelude::*;

use super::*;
use tables::*;

/// CT-1: A → B → C → D, nobody waits for anybody, and each is done before those it called.
#[test]
fn a_context_is_released_only_when_its_last_nested_call_is_done() {
    let mut net = Tables::new(4);
    let context = net.open(A);
    for (from, to) in [(A, B), (B, C), (C, D)] {
        net.called(from, to, context);
    }
    net.finish_call(B, A, context);
    net.finish_call(C, B, context);
    net.release(A, context);
    net.deliver_all();
    assert_eq!(net.released(), []);
    net.finish_call(D, C, context);
    net.deliver_all();
    assert_eq!(net.released(), [(A, context)]);
    net.finish();
}

/// CT-1: several calls to one worker, from several others, done in any order.
#[test]
fn every_call_is_counted_whoever_made_it() {
    let orders = [[A, A, B], [A, B, A], [B, A, A]];
    for order in orders {
        let mut net = Tables::new(3);
        let context = net.open(A);
        net.called(A, C, context);
        net.called(A, C, context);
        net.called(A, B, context);
        net.called(B, C, context);
        net.finish_call(B, A, context);
        net.release(A, context);
        for caller in order {
            net.deliver_all();
            assert_eq!(net.released(), []);
            net.finish_call(C, caller, context);
        }
        net.deliver_all();
        assert_eq!(net.released(), [(A, context)]);
        net.finish();
    }
}

/// CT-1: a worker at rest is drawn in again, by another.
#[test]
fn a_worker_may_be_drawn_in_again() {
    let mut net = Tables::new(3);
    let context = net.open(A);
    for _ in 0..3 {
        net.called(A, B, context);
        net.called(B, C, context);
        net.finish_call(C, B, context);
        net.finish_call(B, A, context);
        net.deliver_all();
        net.called(A, C, context);
        net.called(C, B, context);
        net.finish_call(C, A, context);
        net.finish_call(B, C, context);
        net.deliver_all();
    }
    net.release(A, context);
    net.deliver_all();
    assert_eq!(net.released(), [(A, context)]);
    net.finish();
}

/// CT-1: calls back to the origin, and in a circle.
#[test]
fn calls_may_go_round_in_a_circle() {
    let mut net = Tables::new(3);
    let context = net.open(A);
    for (from, to) in [(A, B), (B, C), (C, A), (A, B)] {
        net.called(from, to, context);
    }
    net.release(A, context);
    for (n, from) in [(A, C), (B, A), (C, B), (B, A)] {
        net.deliver_all();
        assert_eq!(net.released(), []);
        net.finish_call(n, from, context);
    }
    net.deliver_all();
    assert_eq!(net.released(), [(A, context)]);
    net.finish();
}

/// CT-1, R5: a call that never left does not count.
#[test]
fn a_call_that_never_left_holds_nothing_up() {
    let mut net = Tables::new(2);
    let context = net.open(A);
    net.on(A, |table, _| table.start_call(context, id(B)))
        .unwrap();
    net.release(A, context);
    assert_eq!(net.released(), []);
    net.on(A, |table, out| table.undo_call(context, id(B), out));
    net.deliver_all();
    assert_eq!(net.released(), [(A, context)]);
    net.finish();
}

/// CT-2: the cleanup floods along every edge and is answered by all before the origin says so.
#[test]
fn a_cleanup_reaches_all_and_is_answered_by_all() {
    let mut net = Tables::new(4);
    let context = net.open(A);
    for (from, to) in [(A, B), (B, C), (C, D), (B, D)] {
        net.called(from, to, context);
    }
    assert_eq!(net.tables[B].known_workers(context), [id(A), id(C), id(D)]);
    for (n, from) in [(D, B), (D, C), (C, B), (B, A)] {
        net.finish_call(n, from, context);
    }
    net.deliver_all();
    net.release(A, context);
    assert_eq!(net.busy(), [(A, B)]);
    net.deliver(A, B);
    assert_eq!(net.busy(), [(B, C), (B, D)], "no answer before theirs");
    net.deliver(B, C);
    net.deliver(B, D);
    // C and D tell each other, and answer each other.
    assert_eq!(net.busy(), [(C, D), (D, C)]);
    assert_eq!(net.released(), []);
    net.deliver_all();
    assert_eq!(net.released(), [(A, context)]);
    net.finish();
}

/// CT-3, D5: what is late by a whole life leaves nothing behind, however many lives there were.
#[test]
fn a_cleanup_after_its_origins_death_is_not_remembered() {
    let mut net = Tables::new(2);
    let mut empty = net.tables[A].clone();
    for life in 1..=3 {
        let (origin, after) = (NodeId::new(1, life), NodeId::new(1, life + 1));
        let context = ContextId::new(origin, 4);
        net.on(A, |table, out| table.on_gone(origin, out));
        net.on(A, |table, out| table.on_cleanup(id(B), context, 4, out));
        net.on(A, |table, out| table.on_gone(after, out));
        // Nor does a call of the first life reach a worker that has known the third.
        let first = ContextId::new(NodeId::new(1, 1), 0);
        let called = net.on(A, |table, out| table.receive_call(first, id(B), out));
        assert_eq!(called, Err(ContextError::Closed { context: first }));
        empty.on_gone(after, &mut Outbox::<()>::new());
    }
    assert_eq!(net.tables[A], empty);
    net.finish();
}

/// CT-3: whoever was told of the release refuses late calls, and the caller need not wait.
#[test]
fn a_late_call_is_refused_and_counted_as_done() {
    let mut net = Tables::new(3);
    let context = net.open(A);
    net.called(A, B, context);
    net.finish_call(B, A, context);
    net.deliver_all();
    net.release(A, context);
    net.deliver_all();
    assert_eq!(net.released(), [(A, context)]);
    for (n, from) in [(B, C), (A, C)] {
        let refused = net.on(n, |table, out| table.receive_call(context, id(from), out));
        assert_eq!(refused, Err(ContextError::Closed { context }));
        assert!(net.tables[n].is_empty());
    }
    let said = net.wires.values().flatten().cloned().collect::<Vec<_>>();
    let done = Packet::Control(Control::ContextDone(vec![(context, 1)]));
    assert_eq!(said, [done.clone(), done]);
    net.finish();
}

/// CT-3: no calls are made in a context that is closed or unknown; only the origin releases.
#[test]
fn a_context_is_used_while_it_is_open_and_released_by_its_origin() {
    let mut net = Tables::new(3);
    let context = net.open(A);
    let unknown = net.on(B, |table, _| table.start_call(context, id(C)));
    assert_eq!(unknown, Err(ContextError::Unknown { context }));
    net.called(A, B, context);
    let refused = net.on(B, |table, out| table.release(context, out));
    assert_eq!(refused, Err(ContextError::NotOrigin { context }));
    net.finish_call(B, A, context);
    net.release(A, context);
    net.deliver_all();
    for n in [A, B] {
        let closed = net.on(n, |table, _| table.start_call(context, id(C)));
        assert_eq!(closed, Err(ContextError::Closed { context }));
    }
    let closed = net.on(A, |table, out| table.release(context, out));
    assert_eq!(closed, Err(ContextError::Closed { context }));
    net.finish();
}

/// CT-4: B, who drew C in, dies; C attaches to the origin, in every order of the two learning it.
#[test]
fn a_worker_whose_caller_died_attaches_to_the_origin() {
    for release_first in [true, false] {
        for origin_first in [true, false] {
            let mut net = Tables::new(3);
            let context = net.open(A);
            net.called(A, B, context);
            net.called(B, C, context);
            net.finish_call(C, B, context);
            net.finish_call(B, A, context);
            net.deliver_all();
            if release_first {
                net.release(A, context);
            }
            net.crash(B);
            let order = if origin_first { [A, C] } else { [C, A] };
            order.into_iter().for_each(|n| net.gone(n, B));
            net.deliver_all();
            if !release_first {
                assert_eq!(net.tables[A].known_workers(context), [id(C)]);
                net.release(A, context);
                net.deliver_all();
            }
            assert_eq!(net.released(), [(A, context)]);
            net.finish();
        }
    }
}

/// CT-2, CT-4: B dies before it has passed the cleanup on, and C asks the origin, which still waits for D: it then
/// waits for C, too.
#[test]
fn whoever_attaches_in_the_middle_of_a_cleanup_is_waited_for() {
    let mut net = Tables::new(4);
    let context = net.open(A);
    for (from, to) in [(A, B), (A, D), (B, C)] {
        net.called(from, to, context);
    }
    for (n, from) in [(C, B), (B, A), (D, A)] {
        net.finish_call(n, from, context);
        net.deliver_all();
    }
    net.release(A, context);
    net.crash(B);
    net.gone(A, B);
    net.gone(C, B);
    net.deliver(C, A);
    net.deliver(A, D);
    net.deliver(D, A);
    assert_eq!(net.tables[C].contexts(), [context]);
    assert_eq!(net.released(), [], "C has not been told");
    net.deliver_all();
    assert_eq!(net.released(), [(A, context)]);
    net.finish();
}

/// CT-4: C is at work for the dead B; the cleanup takes the context from it all the same.
#[test]
fn a_worker_still_busy_for_a_dead_caller_is_told_of_the_release() {
    let mut net = Tables::new(3);
    let context = net.open(A);
    net.called(A, B, context);
    net.called(B, C, context);
    net.bury(B);
    net.deliver_all();
    net.release(A, context);
    net.deliver_all();
    assert_eq!(net.released(), [(A, context)]);
    net.finish_call(C, B, context);
    assert_eq!(net.busy(), [], "there is nobody to tell that it is done");
    net.finish();
}

/// CT-2, CT-4: a worker dies in the middle of the cleanup, before it has passed it on.
#[test]
fn a_death_in_the_middle_of_a_cleanup_leaves_nobody_out() {
    let mut net = Tables::new(4);
    let context = net.open(A);
    for (from, to) in [(A, B), (B, C), (C, D)] {
        net.called(from, to, context);
    }
    for (n, from) in [(D, C), (C, B), (B, A)] {
        net.finish_call(n, from, context);
    }
    net.deliver_all();
    net.release(A, context);
    net.deliver(A, B);
    net.deliver(B, C);
    // C has told D, but dies before D hears of it or B of its answer.
    net.wires.remove(&(C, D));
    net.bury(C);
    net.deliver_all();
    assert_eq!(net.released(), [(A, context)]);
    net.finish();
}

/// CT-4, F2: the origin dies; all forget, and late calls do not bring it back.
#[test]
fn all_forget_when_the_origin_dies() {
    let mut net = Tables::new(3);
    let context = net.open(A);
    net.called(A, B, context);
    net.called(B, C, context);
    net.call(B, C, context);
    net.crash(A);
    net.gone(B, A);
    net.gone(C, A);
    let node = id(A);
    for n in [B, C] {
        // C does not know the origin, but whose context it is.
        assert!(
            net.events
                .contains(&(n, Event::ContextFailed { context, node }))
        );
        assert!(net.tables[n].is_empty());
    }
    net.deliver(B, C);
    let refused = Err(ContextError::Closed { context });
    assert_eq!(net.arrivals.last(), Some(&(B, C, refused)));
    net.finish_call(B, A, context);
    net.finish_call(C, B, context);
    net.finish();
}

/// CT-2, F2: the one who passed a cleanup on is over with a later life of its worker, and is not told that all have answered.
#[test]
fn with_a_later_life_of_a_worker_it_is_not_told_that_a_cleanup_is_done() {
    let mut net = Tables::new(4);
    let context = net.open(A);
    for (from, to) in [(A, B), (B, C), (C, D)] {
        net.called(from, to, context);
    }
    for (n, from) in [(D, C), (C, B), (B, A)] {
        net.finish_call(n, from, context);
    }
    net.deliver_all();
    net.release(A, context);
    net.deliver(A, B);
    net.deliver(B, C);
    let later = NodeId::new(B as u32, 3);
    for n in [A, C] {
        net.on(n, |table, out| table.on_gone(later, out));
    }
    net.crash(B);
    net.deliver(C, D);
    let told = net.on(C, |table, out| {
        table.on_cleaned(id(D), context, out);
        out.receivers().count()
    });
    assert_eq!(told, 0);
    net.deliver_all();
    assert_eq!(net.released(), [(A, context)]);
    net.finish();
}

/// CT-3, D5: of a life nobody remembers which of its contexts are closed once a later one of its worker is over.
#[test]
fn with_a_later_life_of_its_origin_it_is_forgotten_which_contexts_are_closed() {
    let mut net = Tables::new(2);
    let mut empty = net.tables[A].clone();
    let [life, later] = [1, 3].map(|life| NodeId::new(900, life));
    let context = ContextId::new(life, 4);
    net.on(A, |table, out| table.on_cleanup(id(B), context, 4, out));
    net.on(A, |table, out| table.on_gone(later, out));
    empty.on_gone(later, &mut Outbox::<()>::new());
    assert_eq!(net.tables[A], empty);
    net.finish();
}

/// F2: a context that lost a worker takes no further calls where that is known.
#[test]
fn a_context_that_lost_a_worker_takes_no_further_calls() {
    let mut net = Tables::new(3);
    let context = net.open(A);
    net.called(A, B, context);
    net.bury(B);
    let node = id(B);
    assert_eq!(net.events, [(A, Event::ContextFailed { context, node })]);
    let refused = net.on(A, |table, _| table.start_call(context, id(C)));
    assert_eq!(
        refused,
        Err(ContextError::ParticipantLost { context, node })
    );
    net.release(A, context);
    assert_eq!(net.released(), [(A, context)]);
    net.finish();
}

/// F3: a context of the old life is closed, one of the new life with the same number is open.
#[test]
fn contexts_of_two_lives_are_not_mistaken_for_each_other() {
    let mut net = Tables::new(2);
    let old = net.open(A);
    net.called(A, B, old);
    net.bury(A);
    let new = ContextId::new(NodeId::new(A as u32, 2), old.counter);
    let closed = net.on(B, |table, out| table.receive_call(old, id(A), out));
    assert_eq!(closed, Err(ContextError::Closed { context: old }));
    assert_eq!(
        net.on(B, |table, out| table.receive_call(new, new.origin, out)),
        Ok(())
    );
    net.on(B, |table, out| table.on_gone(new.origin, out));
    net.finish();
}

/// CT-3, D5: what is remembered of closed contexts is bounded, in either order of closing.
#[test]
fn the_memory_of_closed_contexts_is_bounded() {
    let mut closed = Closed::default();
    for counter in 0..2 * MAX_CLOSED as u64 {
        closed.insert(counter, 0);
    }
    assert_eq!(closed.also.len(), MAX_CLOSED);
    assert!(closed.contains(2 * MAX_CLOSED as u64 - 1) && !closed.contains(0));
    closed.insert(3, 2 * MAX_CLOSED as u64);
    assert_eq!(closed.also.len(), 0);
    assert!(closed.contains(0) && !closed.contains(2 * MAX_CLOSED as u64));
}

/// CT-3: one old context stays open while many come and go; the origin's word compacts the rest.
#[test]
fn the_origins_lowest_open_context_compacts_what_others_remember() {
    let mut net = Tables::new(2);
    let mut last = None;
    for _ in 0..100 {
        let context = net.open(A);
        let keeps_it_open = net.open(A);
        for context in last.into_iter().chain([context]) {
            net.called(A, B, context);
            net.finish_call(B, A, context);
            net.deliver_all();
            net.release(A, context);
            net.deliver_all();
        }
        last = Some(keeps_it_open);
    }
    let remembered = &net.tables[B].closed[&id(A)];
    assert!(remembered.also.len() <= 2, "{remembered:?}");
    net.release(A, last.unwrap());
    net.finish();
}

/// A4: contexts of several origins over the same workers keep apart.
#[test]
fn concurrent_contexts_keep_apart() {
    let mut net = Tables::new(3);
    let (of_a, of_b) = (net.open(A), net.open(B));
    for context in [of_a, of_b] {
        let (origin, other) = if context == of_a { (A, B) } else { (B, A) };
        net.called(origin, C, context);
        net.called(C, other, context);
        net.finish_call(C, origin, context);
        net.release(origin, context);
    }
    net.deliver_all();
    net.finish_call(B, C, of_a);
    net.deliver_all();
    assert_eq!(net.released(), [(A, of_a)]);
    assert_eq!(net.tables[C].contexts(), [of_b]);
    net.finish_call(A, C, of_b);
    net.deliver_all();
    assert_eq!(net.released(), [(B, of_b)]);
    net.finish();
}

proptest! {
    #![proptest_config(crate::random_cases::random_cases(200, 1000))]

    /// CT-1, CT-2: any calls, worked on in any order, over queues that move at random; the release
    /// comes when the last is done, exactly then, and nothing is left.
    #[test]
    fn a_context_is_released_when_its_last_call_is_done(
        steps in prop::collection::vec((0usize..4, 0usize..4, any::<usize>()), 0..80),
    ) {
        let mut net = Tables::new(4);
        let context = net.open(A);
        net.call(A, B, context);
        net.release(A, context);
        let mut running: Vec<(usize, usize)> = Vec::new();
        let mut on_their_way = 1;
        let mut steps = steps.into_iter();
        loop {
            let next = steps.next();
            if next.is_none() && running.is_empty() && on_their_way == 0 {
                break;
            }
            let (kind, to, which) = next.unwrap_or((2, 0, 0));
            match kind {
                // Whoever is at work may call on.
                0 if !running.is_empty() => {
                    let (from, _) = running[which % running.len()];
                    if from != to {
                        net.call(from, to, context);
                        on_their_way += 1;
                    }
                }
                1 if !running.is_empty() => {
                    let (n, from) = running.swap_remove(which % running.len());
                    net.finish_call(n, from, context);
                }
                _ => {
                    let busy = net.busy();
                    if let Some(&(from, to)) = busy.get(which.checked_rem(busy.len()).unwrap_or(0)) {
                        net.deliver(from, to);
                    } else if let Some((n, from)) = running.pop() {
                        net.finish_call(n, from, context);
                    }
                }
            }
            for (from, to, arrival) in std::mem::take(&mut net.arrivals) {
                prop_assert_eq!(arrival, Ok(()));
                running.push((to, from));
                on_their_way -= 1;
            }
            if !running.is_empty() || on_their_way > 0 {
                prop_assert_eq!(net.released(), []);
            }
        }
        net.deliver_all();
        prop_assert_eq!(net.released(), [(A, context)]);
        net.finish();
    }
}
