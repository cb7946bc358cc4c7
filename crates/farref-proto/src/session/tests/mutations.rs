//! The broken variants are broken, in the way the simulator is to notice.

use super::*;

#[test]
fn without_dedup_a_duplicate_is_handed_over_twice() {
    let mut pair = Pair::connected();
    pair.ends[RIGHT].break_dedup();
    pair.send(LEFT, Lane::Call, 1);
    pair.transmit(LEFT);
    let item = pair.links[RIGHT][0].clone();
    pair.links[RIGHT].push_back(item);
    pair.exchange();
    assert_eq!(pair.delivered[RIGHT], [(Lane::Call, 1), (Lane::Call, 1)]);
    pair.abandon();
}

#[test]
fn without_replay_frames_are_lost_and_nobody_complains() {
    let mut pair = Pair::connected();
    pair.ends[LEFT].break_replay();
    pair.send(LEFT, Lane::Call, 1);
    pair.transmit(LEFT);
    pair.send(LEFT, Lane::Call, 2);
    pair.cut();
    pair.connect();
    pair.exchange();
    assert_eq!(pair.delivered[RIGHT], [(Lane::Call, 2)]);
    pair.abandon();
}
