//! Who gets which id and life, and who founds the group.

use std::sync::Arc;
use std::time::Duration;

use farref_testkit::{Scratch, TEST_TIMEOUT};
use tokio::time::sleep;

use super::counting::Counting;
use super::{assert_one_founding, enter_all, hurried, memory, nodes, plan, ranked, static_group};
use crate::group::{Address, enter};
use crate::{FileStore, RendezvousError, StoreServer, TcpStoreClient};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_clients_found_one_group() {
    let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().port();
    let mut tasks = Vec::new();
    for rank in 0..64 {
        tasks.push(tokio::spawn(async move {
            let client = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT)
                .await
                .unwrap();
            enter(Arc::new(client), ranked(rank, 64)).await.unwrap()
        }));
    }
    let mut entries = Vec::new();
    for task in tasks {
        entries.push(task.await.unwrap());
    }
    assert_one_founding(&entries);
    let seen = entries[5].directory.by_name("worker63").unwrap();
    assert_eq!(seen, entries[63].me);
}

#[tokio::test]
async fn workers_that_share_a_file_found_one_group() {
    let scratch = Scratch::new().unwrap();
    let mut tasks = Vec::new();
    for rank in 0..6 {
        let store = FileStore::new(scratch.path().join("store"));
        tasks.push(tokio::spawn(enter(Arc::new(store), ranked(rank, 6))));
    }
    let mut entries = Vec::new();
    for task in tasks {
        entries.push(task.await.unwrap().unwrap());
    }
    assert_one_founding(&entries);
}

#[tokio::test]
async fn a_worker_that_never_comes_is_named() {
    let store = memory();
    let plans = vec![hurried(ranked(0, 4)), hurried(ranked(2, 4))];
    for entered in enter_all(&store, plans).await {
        let error = entered.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("rank 1, 3 did not come"), "{text}");
        assert!(text.contains("0 (worker0), 2 (worker2)"), "{text}");
        match error {
            RendezvousError::Missing {
                missing,
                world_size,
                ..
            } => assert_eq!((missing, world_size), (vec![1, 3], 4)),
            other => panic!("{other:?}"),
        }
    }
}

/// Whose names cannot be read in time, as on a machine that has too much to do: who did not come is known all the same.
#[tokio::test]
async fn a_worker_that_never_comes_is_named_though_there_is_no_time_to_read_the_others() {
    let store = Counting {
        gets_stuck: true,
        ..Counting::default()
    };
    let error = enter(Arc::new(store), hurried(ranked(0, 300))).await;
    let text = error.unwrap_err().to_string();
    assert!(text.contains("rank 1, 2, 3"), "{text}");
    assert!(text.contains("0 (name unknown)"), "{text}");
}

#[tokio::test]
async fn a_restarted_rank_has_a_greater_life_and_is_no_founder() {
    let store = memory();
    let entries = static_group(&store, 3).await;
    let mut last = entries[1].me.node;
    for _ in 0..3 {
        let again = enter(store.clone(), ranked(1, 3)).await.unwrap();
        assert!(again.founders.is_none());
        assert_eq!(again.group, entries[0].group);
        assert_eq!(again.me.node.worker, last.worker);
        assert!(again.me.node.incarnation > last.incarnation);
        last = again.me.node;
        let sponsors = again.directory.sponsors().await.unwrap();
        assert_eq!(nodes(&sponsors), [entries[0].me.node, entries[2].me.node]);
    }
    let found = entries[0].directory.lookup(last).await.unwrap();
    assert_eq!(found.node, last);
    assert_eq!(entries[0].directory.by_name("worker1").unwrap().node, last);
    entries[0].directory.forget(last);
    assert_eq!(
        entries[0].directory.by_name("worker1").unwrap(),
        entries[1].me
    );
}

#[tokio::test]
async fn a_rank_restarted_before_the_founding_founds_in_its_later_life() {
    let store = memory();
    let first = tokio::spawn(enter(store.clone(), ranked(0, 2)));
    sleep(Duration::from_millis(30)).await;
    first.abort();
    let entries = static_group(&store, 2).await;
    assert_one_founding(&entries);
}

#[tokio::test]
async fn a_life_is_later_even_if_the_store_forgot_the_earlier_ones() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.unwrap().as_secs() as u32;
    let entry = enter(memory(), plan("a", None, None)).await.unwrap();
    assert!((now..now + 60).contains(&entry.me.node.incarnation.0));
}

#[tokio::test]
async fn of_two_foundings_at_once_one_wins() {
    for _ in 0..20 {
        let store = memory();
        let plans = vec![
            plan("a", None, None),
            plan("b", None, None),
            plan("c", Some(0), None),
        ];
        let entries: Vec<_> = enter_all(&store, plans).await;
        let entries: Vec<_> = entries.into_iter().map(Result::unwrap).collect();
        let founders: Vec<_> = entries
            .iter()
            .filter_map(|entry| entry.founders.as_ref())
            .collect();
        assert_eq!(founders.len(), 1);
        assert_eq!(founders[0].len(), 1);
        assert!(entries.iter().all(|entry| entry.group == entries[0].group));
        let mut ids: Vec<_> = entries.iter().map(|entry| entry.me.node.worker.0).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 3);
        for entry in &entries {
            assert_eq!(entry.directory.sponsors().await.unwrap().len(), 2);
        }
    }
}

#[tokio::test]
async fn a_known_name_without_a_rank_is_the_same_worker_again() {
    let store = memory();
    let founder = enter(store.clone(), plan("a", None, None)).await.unwrap();
    let first = enter(store.clone(), plan("b", None, None)).await.unwrap();
    let second = enter(store.clone(), plan("b", None, None)).await.unwrap();
    assert!(founder.founders.is_some() && first.founders.is_none() && second.founders.is_none());
    assert_eq!(first.me.node.worker, second.me.node.worker);
    assert!(first.me.node.incarnation < second.me.node.incarnation);
    let sponsors = founder.directory.sponsors().await.unwrap();
    assert_eq!(nodes(&sponsors), [second.me.node], "only the latest life");
}

#[tokio::test]
async fn a_worker_without_a_world_size_may_join_a_static_group() {
    let store = memory();
    let entries = static_group(&store, 2).await;
    let guest = enter(store.clone(), plan("guest", None, None))
        .await
        .unwrap();
    assert!(guest.founders.is_none());
    assert!(guest.me.node.worker.0 >= 2);
    assert_eq!(guest.directory.sponsors().await.unwrap().len(), 2);
    assert_eq!(
        nodes(&entries[0].directory.sponsors().await.unwrap())[1],
        guest.me.node
    );
    let back = enter(store, plan("worker1", Some(1), None)).await.unwrap();
    assert_eq!(back.me.node.worker, entries[1].me.node.worker);
}

#[tokio::test]
async fn a_plan_that_cannot_be_is_refused_at_once() {
    for (rank, world_size) in [(None, Some(2)), (Some(2), Some(2)), (Some(0), Some(0))] {
        let error = enter(memory(), plan("a", rank, world_size))
            .await
            .unwrap_err();
        assert!(matches!(error, RendezvousError::Rank { .. }), "{error}");
    }
    let error = enter(memory(), plan("a b", None, None)).await.unwrap_err();
    assert!(matches!(error, RendezvousError::Name { .. }), "{error}");
    let mut crowded = plan("a", None, None);
    crowded.addresses = vec![Address::Memory("x".into()); 9];
    let error = enter(memory(), crowded).await.unwrap_err();
    assert!(matches!(error, RendezvousError::Card { .. }), "{error}");
}
