//! What a driver keeps for open calls is there as long as they are, and given back once.

use crate::{
    Event, Incarnation, Membership, MessageId, Node, NodeConfig, NodeId, Outbox, Target, Want,
    WorkerId,
};

type Recording = Node<u32, &'static str, &'static str>;

const A: NodeId = NodeId {
    worker: WorkerId(0),
    incarnation: Incarnation(1),
};
const B: NodeId = NodeId {
    worker: WorkerId(1),
    incarnation: Incarnation(1),
};

fn pair() -> [Recording; 2] {
    [A, B].map(|me| {
        let membership = Membership::founding(me, [A, B]);
        Node::with_records(me, membership, NodeConfig::default())
    })
}

/// A call of A's that has arrived at B, with a record on both sides.
fn call(a: &mut Recording, b: &mut Recording, out: &mut Outbox<u32>) -> MessageId {
    let head = a.call(B, Want::Answer, &[], None, out).unwrap();
    let Target::Answer(request) = head.target else {
        panic!("an answer is wanted")
    };
    a.keep_outgoing(B, request, "asked");
    b.receive_call(A, &head, out).unwrap();
    b.keep_incoming(A, request, "at work");
    request
}

#[test]
fn an_answer_gives_back_what_was_kept_for_its_call() {
    let [mut a, mut b] = pair();
    let mut out = Outbox::new();
    let request = call(&mut a, &mut b, &mut out);
    let outgoing: Vec<_> = a.outgoing_records(B).collect();
    assert_eq!(outgoing, [(request, &"asked")]);
    let incoming: Vec<_> = b.incoming_records(A).collect();
    assert_eq!(incoming, [(request, &"at work")]);

    let answer = b.answer(A, request, &[], &mut out).unwrap().unwrap();
    assert_eq!(b.incoming_records(A).count(), 0);
    assert_eq!(b.take_incoming(A, request), None);
    let answered = a.receive_answer(B, &answer, &mut out).unwrap();
    assert_eq!((answered.wanted, answered.record), (true, Some("asked")));
    assert_eq!(a.outgoing_record(B, request), None);
}

/// CA-1: a cancelled call is open until its answer is there, and so is what was kept for it.
#[test]
fn a_cancelled_call_keeps_its_record_until_it_is_answered() {
    let [mut a, mut b] = pair();
    let mut out = Outbox::new();
    let request = call(&mut a, &mut b, &mut out);
    assert!(a.cancel(B, request));
    b.receive_cancel(A, request, &mut out);
    assert_eq!(b.take_incoming(A, request), Some("at work"));
    assert_eq!(b.take_incoming(A, request), None);
    let answer = b.answer(A, request, &[], &mut out).unwrap().unwrap();
    let answered = a.receive_answer(B, &answer, &mut out).unwrap();
    assert_eq!((answered.wanted, answered.record), (false, Some("asked")));
}

#[test]
fn a_call_that_is_undone_gives_back_what_was_kept_for_it() {
    let [mut a, _] = pair();
    let mut out = Outbox::new();
    let head = a.call(B, Want::Answer, &[], None, &mut out).unwrap();
    let Target::Answer(request) = head.target else {
        panic!("an answer is wanted")
    };
    a.keep_outgoing(B, request, "asked");
    assert_eq!(a.undo_call(B, &head, &mut out), Some("asked"));
    assert_eq!(a.outgoing_records(B).count(), 0);
}

#[test]
fn what_was_kept_for_calls_of_a_peer_that_is_gone_is_given_out_once() {
    let [mut a, mut b] = pair();
    let mut out = Outbox::new();
    let request = call(&mut a, &mut b, &mut out);
    let mut out = Outbox::new();
    a.suspect(B, &mut out);
    b.suspect(A, &mut out);
    let mut lost = 0;
    while let Some(event) = out.pop_event() {
        match event {
            Event::PeerLost { node: B, request } => {
                assert_eq!(a.lost_outgoing(B, request), Some("asked"));
                lost += 1;
            }
            Event::Abandoned { node: A, request } => {
                assert_eq!(b.take_incoming(A, request), Some("at work"));
                lost += 1;
            }
            _ => {}
        }
    }
    assert_eq!(lost, 2, "one on each side");
    assert_eq!(a.lost_outgoing(B, request), None);
    assert_eq!(b.take_incoming(A, request), None);
}

#[test]
fn a_driver_that_ends_gets_back_all_that_it_kept() {
    let [mut a, mut b] = pair();
    let mut out = Outbox::new();
    call(&mut a, &mut b, &mut out);
    call(&mut a, &mut b, &mut out);
    assert_eq!(a.take_records(), (vec!["asked"; 2], Vec::new()));
    assert_eq!(b.take_records(), (Vec::new(), vec!["at work"; 2]));
    assert_eq!(b.take_records(), (Vec::new(), Vec::new()));
}

/// Also of calls that were lost with their peers and that it has not asked for.
#[test]
fn a_driver_that_ends_gets_back_what_it_kept_for_calls_of_peers_that_are_gone() {
    let [mut a, mut b] = pair();
    let mut out = Outbox::new();
    call(&mut a, &mut b, &mut out);
    a.suspect(B, &mut out);
    b.suspect(A, &mut out);
    assert_eq!(a.take_records(), (vec!["asked"], Vec::new()));
    assert_eq!(b.take_records(), (Vec::new(), vec!["at work"]));
}
