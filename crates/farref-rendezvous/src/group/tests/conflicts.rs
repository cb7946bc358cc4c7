//! Workers that do not go together: all whom it concerns are told.

use std::sync::Arc;

use farref_proto::NodeId;

use super::counting::Counting;
use super::{
    after, assert_one_founding, enter_all, memory, nodes, plan, ranked, static_group, waiting,
};
use crate::group::records::GroupRecords;
use crate::group::{Address, Card, CertificateTag, Liveness, Plan, TokenTag, enter};
use crate::{RendezvousError, Store};

#[tokio::test]
async fn a_worker_for_another_kind_of_group_hears_of_both() {
    let store = memory();
    static_group(&store, 2).await;
    let error = enter(store.clone(), ranked(2, 3))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("world size of 3") && error.contains("world size of 2"),
        "{error}"
    );
    let error = enter(store, plan("x", Some(7), None))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("rank 7") && error.contains("world size of 2"),
        "{error}"
    );
    let store = memory();
    enter(store.clone(), plan("a", None, None)).await.unwrap();
    let error = enter(store, ranked(0, 2)).await.unwrap_err().to_string();
    assert!(
        error.contains("world size of 2") && error.contains("no fixed"),
        "{error}"
    );
}

#[tokio::test]
async fn a_name_or_rank_taken_twice_is_an_error_that_names_both() {
    let store = memory();
    let mut waiting = waiting(&store, plan("a", Some(0), Some(3))).await;
    let refused = enter(store.clone(), plan("a", Some(2), Some(3))).await;
    for told in [refused, waiting.await.unwrap()] {
        match told {
            Err(RendezvousError::DuplicateName {
                name,
                first,
                second,
            }) => assert_eq!((name.as_str(), first, second), ("a", 0, 2)),
            other => panic!("{other:?}"),
        }
    }
    waiting = self::waiting(&store, plan("a", Some(0), Some(3))).await;
    let refused = enter(store.clone(), plan("b", Some(0), Some(3))).await;
    for told in [refused, waiting.await.unwrap()] {
        match told {
            Err(RendezvousError::DuplicateRank {
                rank,
                first,
                second,
            }) => assert_eq!((rank, first.as_str(), second.as_str()), (0, "a", "b")),
            other => panic!("{other:?}"),
        }
    }
    // Whoever was refused has taken nothing: the name goes with the right rank. And what those were
    // told is history.
    let plans = vec![
        plan("a", Some(0), Some(3)),
        plan("b", Some(1), Some(3)),
        plan("c", Some(2), Some(3)),
    ];
    for entered in enter_all(&store, plans).await {
        entered.unwrap();
    }
    // A group that runs is not disturbed by those who come too late.
    let late = enter(store.clone(), plan("a", Some(2), Some(3))).await;
    assert!(matches!(late, Err(RendezvousError::DuplicateName { .. })));
}

/// F4: a worker that is started twice is told, in both its processes, and so are those who wait for it.
#[tokio::test]
async fn a_worker_started_twice_is_told_and_so_are_those_who_wait() {
    for found in [Liveness::Silent, Liveness::Alive] {
        let store = memory();
        let waiting = [
            waiting(&store, ranked(0, 3)).await,
            waiting(&store, ranked(1, 3)).await,
        ];
        let twice = enter(store.clone(), after(ranked(1, 3), found)).await;
        let mut told = vec![twice];
        for waiting in waiting {
            told.push(waiting.await.unwrap());
        }
        for told in told {
            match told {
                Err(RendezvousError::NameTaken { name, address }) => {
                    assert_eq!(name, "worker1");
                    assert_eq!(address, "memory:address of worker1");
                }
                other => panic!("{other:?}"),
            }
        }
        // Next time they come together.
        assert_one_founding(&static_group(&store, 3).await);
    }
}

/// F4, invariant 7: also if the second life did not find the first, whose card came too late.
#[tokio::test]
async fn lives_that_did_not_notice_each_other_are_told_while_they_wait() {
    let store = memory();
    let mut all = vec![waiting(&store, ranked(0, 3)).await];
    for _ in 0..2 {
        all.push(waiting(&store, ranked(1, 3)).await);
    }
    for told in all {
        match told.await.unwrap() {
            Err(RendezvousError::NameTaken { name, .. }) => assert_eq!(name, "worker1"),
            other => panic!("{other:?}"),
        }
    }
    assert_one_founding(&static_group(&store, 3).await);
}

/// F3: of a worker that crashed before the founding, whose port another one has now that waits and says
/// nothing, the card is a leftover.
#[tokio::test]
async fn a_port_that_another_worker_has_now_is_no_sign_of_the_one_before() {
    let store = memory();
    let crashed = waiting(&store, ranked(1, 3)).await;
    crashed.abort();
    let mut heir = ranked(2, 3);
    heir.addresses = ranked(1, 3).addresses;
    let heir = waiting(&store, heir).await;
    let again = waiting(&store, after(ranked(1, 3), Liveness::Silent)).await;
    let founder = enter(store.clone(), ranked(0, 3));
    let mut entered = vec![founder.await.unwrap()];
    for other in [again, heir] {
        entered.push(other.await.unwrap().unwrap());
    }
    assert_one_founding(&entered);
}

/// F4, invariant 2: also if both take the first incarnation at the same moment.
#[tokio::test]
async fn a_worker_started_twice_at_once_has_two_lives_and_is_told() {
    let store: Arc<dyn Store> = Arc::new(Counting {
        meeting: Some(tokio::sync::Barrier::new(2)),
        ..Counting::default()
    });
    let twins = ["one", "other"].map(|address| {
        let mut twin = after(ranked(1, 3), Liveness::Silent);
        twin.addresses = vec![Address::Memory(address.into())];
        twin
    });
    for told in enter_all(&store, twins.into()).await {
        match told {
            Err(RendezvousError::NameTaken { name, .. }) => assert_eq!(name, "worker1"),
            other => panic!("{other:?}"),
        }
    }
}

/// F4, F3: in a group that runs only a worker that is certainly there keeps its name.
#[tokio::test]
async fn a_name_is_taken_only_from_a_worker_that_does_not_answer() {
    let store = memory();
    let a = enter(store.clone(), plan("a", None, None)).await.unwrap();
    let taken = enter(store.clone(), after(plan("a", None, None), Liveness::Alive)).await;
    assert!(matches!(taken, Err(RendezvousError::NameTaken { .. })));
    // It has left the store as it was: the others still find the first.
    let b = enter(store.clone(), plan("b", None, None)).await.unwrap();
    assert_eq!(nodes(&b.directory.sponsors().await.unwrap()), [a.me.node]);
    for found in [Liveness::Silent, Liveness::Gone] {
        let again = enter(store.clone(), after(plan("a", None, None), found)).await;
        assert!(again.unwrap().me.node > a.me.node);
    }
}

/// F4: founders that could not talk to each other are all told before there is a group.
#[tokio::test]
async fn founders_of_different_tokens_or_wires_are_all_told() {
    let with_token = |rank, token: Option<&str>| Plan {
        token: token.map(TokenTag::of),
        ..after(ranked(rank, 3), Liveness::Silent)
    };
    let store = memory();
    let plans = vec![
        with_token(0, Some("right")),
        with_token(1, None),
        with_token(2, Some("wrong")),
    ];
    for told in enter_all(&store, plans).await {
        match told {
            Err(RendezvousError::DifferentTokens { like, unlike }) => {
                assert_eq!(
                    (like.as_str(), &unlike[..]),
                    ("worker0", &["worker1".to_owned(), "worker2".to_owned()][..])
                );
            }
            other => panic!("{other:?}"),
        }
    }
    let with_wire = |rank, wire| Plan {
        wire,
        ..after(ranked(rank, 3), Liveness::Silent)
    };
    let plans = vec![with_wire(0, 4), with_wire(1, 5), with_wire(2, 4)];
    let expected = [("worker1", 5, 4), ("worker0", 4, 5), ("worker1", 5, 4)];
    for (told, expected) in enter_all(&store, plans).await.into_iter().zip(expected) {
        match told {
            Err(RendezvousError::WireVersion {
                worker,
                theirs,
                ours,
            }) => assert_eq!((worker.as_str(), theirs, ours), expected),
            other => panic!("{other:?}"),
        }
    }
    // A leftover of a worker that has crashed is no reason to give up.
    let leftover = Card {
        node: NodeId::new(2, 1),
        name: "worker2".into(),
        addresses: Vec::new(),
        host: String::new(),
        wire: 9,
        token: None,
        certificate: None,
    };
    let records = GroupRecords::new(store.clone(), "group".into());
    records.set_latest(&leftover).await.unwrap();
    // With one of each they found their group, in the same store.
    let plans = (0..3)
        .map(|rank| after(with_token(rank, Some("right")), Liveness::Gone))
        .collect();
    let entered = enter_all(&store, plans).await.into_iter();
    assert_one_founding(&entered.map(Result::unwrap).collect::<Vec<_>>());
}

/// A founder on a host of its own, with a certificate of this authority.
fn certified(rank: u32, authority: Option<&str>) -> Plan {
    Plan {
        certificate: authority.map(|name| CertificateTag::new([name], [name])),
        addresses: vec![
            Address::Unix(format!("@{rank}")),
            Address::Tcp(([10, 0, 0, 1], rank as u16).into()),
        ],
        host: format!("host {rank}"),
        ..after(ranked(rank, 3), Liveness::Silent)
    }
}

/// F4
#[tokio::test]
async fn founders_whose_certificates_do_not_go_together_are_all_told() {
    let store = memory();
    for (others, expected, reason) in [
        ([None, Some("ours")], ["worker1"], "some have none"),
        ([Some("theirs"), Some("ours")], ["worker1"], "one authority"),
        ([None, Some("theirs")], ["worker1"], "some have none"),
        ([Some("ours"), None], ["worker2"], "some have none"),
    ] {
        let plans = vec![
            certified(0, Some("ours")),
            certified(1, others[0]),
            certified(2, others[1]),
        ];
        for told in enter_all(&store, plans).await {
            match told {
                Err(RendezvousError::DifferentCertificates {
                    one,
                    others,
                    reason: why,
                }) => {
                    assert_eq!(
                        (one.as_str(), others),
                        ("worker0", expected.map(str::to_owned).to_vec())
                    );
                    assert!(why.contains(reason), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // Rank 0 takes both; they do not take each other's.
    let both = CertificateTag::new(["ours"], ["ours", "theirs"]);
    let mut plans = vec![
        certified(0, None),
        certified(1, Some("theirs")),
        certified(2, Some("ours")),
    ];
    plans[0].certificate = Some(both.clone());
    plans[1].certificate = Some(CertificateTag::new(["theirs"], ["ours", "theirs"]));
    plans[2].certificate = Some(CertificateTag::new(["ours"], ["ours"]));
    for told in enter_all(&store, plans).await {
        match told {
            Err(RendezvousError::DifferentCertificates { one, others, .. }) => {
                assert_eq!(
                    (one.as_str(), &others[..]),
                    ("worker1", &["worker2".to_owned()][..])
                );
            }
            other => panic!("{other:?}"),
        }
    }
    // Where all share a host nobody looks at authorities; but who has a certificate talks to nobody without.
    let on_one_host = |rank, authority| Plan {
        host: "host".to_owned(),
        ..certified(rank, authority)
    };
    let plans = vec![
        on_one_host(0, Some("ours")),
        on_one_host(1, Some("theirs")),
        on_one_host(2, Some("ours")),
    ];
    let entered = enter_all(&store, plans).await.into_iter();
    assert_one_founding(&entered.map(Result::unwrap).collect::<Vec<_>>());
    let store = memory();
    let plans = vec![
        on_one_host(0, Some("ours")),
        on_one_host(1, Some("theirs")),
        on_one_host(2, None),
    ];
    for told in enter_all(&store, plans).await {
        match told {
            Err(RendezvousError::DifferentCertificates { one, others, .. }) => {
                assert_eq!(
                    (one.as_str(), &others[..]),
                    ("worker0", &["worker2".to_owned()][..])
                );
            }
            other => panic!("{other:?}"),
        }
    }
}
