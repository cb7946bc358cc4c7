//! Large groups: what meeting costs.

use std::collections::HashMap;
use std::sync::Arc;

use farref_proto::NodeId;

use super::counting::Counting;
use farref_testkit::TEST_TIMEOUT;

use super::ranked;
use crate::group::records::GroupRecords;
use crate::group::{Address, Card, Plan, enter};
use crate::{Store, StoreLimits, StoreServer, TcpStoreClient};

/// Invariant 5, D5: the largest group that is documented meets, and of all its ranks only rank 0 waits
/// for the others' cards.
#[tokio::test]
async fn the_largest_group_meets_and_waits_for_one_key_each() {
    const SIZE: u32 = 16_384;
    let store = Arc::new(Counting::default());
    let records = GroupRecords::new(store.clone(), "group".into());
    let two = tokio::spawn(enter(store.clone(), ranked(2, SIZE)));
    while store
        .store
        .try_get("group/latest/2")
        .await
        .unwrap()
        .is_none()
    {
        tokio::task::yield_now().await;
    }
    // The others, as far as the store sees them.
    for rank in 3..SIZE {
        let card = Card {
            node: NodeId::new(rank, 1),
            name: format!("worker{rank}"),
            addresses: vec![
                Address::Unix("@farref-0123456789abcdef".into()),
                Address::Tcp("10.200.100.50:50000".parse().unwrap()),
            ],
            host: "0123456789abcdef0123456789abcdef".into(),
            wire: 4,
            token: None,
            certificate: None,
        };
        records.set_latest(&card).await.unwrap();
    }
    let one = tokio::spawn(enter(store.clone(), ranked(1, SIZE)));
    let zero = enter(store.clone(), ranked(0, SIZE)).await.unwrap();
    assert_eq!(
        zero.founders.map(|founders| founders.len()),
        Some(SIZE as usize)
    );
    for other in [one, two] {
        let entry = other.await.unwrap().unwrap();
        assert_eq!(entry.group, zero.group);
    }
    let waited: HashMap<usize, usize> =
        store
            .waits
            .lock()
            .unwrap()
            .iter()
            .fold(HashMap::new(), |mut all, keys| {
                *all.entry(*keys).or_default() += 1;
                all
            });
    assert_eq!(waited, HashMap::from([(1, 2), (SIZE as usize, 1)]));
}

/// D5: many ranks meet in a store that has far less memory than it would take if each waited for all
/// cards, or if all were sent the founders' record at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_ranks_meet_in_a_store_with_little_memory() {
    const SIZE: u32 = 384;
    let limits = StoreLimits {
        memory: 5 << 20,
        ..StoreLimits::default()
    };
    let server = StoreServer::bind_with("127.0.0.1:0", limits).await.unwrap();
    let port = server.local_addr().port();
    let tasks: Vec<_> = (0..SIZE)
        .map(|rank| {
            tokio::spawn(async move {
                let client = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT).await;
                let plan = Plan {
                    timeout: TEST_TIMEOUT,
                    ..ranked(rank, SIZE)
                };
                let entry = enter(Arc::new(client.unwrap()), plan).await.unwrap();
                (entry.group, entry.founders.map(|founders| founders.len()))
            })
        })
        .collect();
    let mut met = Vec::new();
    for task in tasks {
        met.push(task.await.unwrap());
    }
    assert!(met.iter().all(|one| *one == met[0]), "{met:?}");
    assert_eq!(met[0].1, Some(SIZE as usize));
}
