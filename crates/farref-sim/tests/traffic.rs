//! What membership costs does not depend on how many there are.

use farref_sim::{Cost, traffic};

/// Section 4.9 of the protocol: each worker has to do with as many messages for a departure or a join in a large group as
/// in a small one.
#[test]
fn a_departure_or_a_join_costs_each_worker_the_same_in_every_group() {
    let most = |workers| {
        let counted = traffic(workers).expect("the group comes to rest");
        let costs = [
            counted.crash,
            counted.crash_of_leader,
            counted.leave,
            counted.join,
        ];
        for Cost { messages, most, .. } in costs {
            // The leader has as many with each of the others.
            assert!(messages <= most * u64::from(workers) + 4, "{counted:?}");
        }
        costs.map(|cost| cost.most)
    };
    let small = most(10);
    assert_eq!(small, [4, 6, 6, 9]);
    assert_eq!(most(40), small);
    assert_eq!(most(150), small);
}
