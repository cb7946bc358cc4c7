//! Messages of every shape, from one end of a pipe to the other.

use std::slice::from_ref;
use std::sync::atomic::Ordering;

use farref_testkit::eventually_async;

use super::bytes::Locked;
use super::*;
use crate::transport::PipeError;

#[tokio::test]
async fn messages_of_every_shape_arrive_in_order() {
    for limits in both_channels() {
        let mut both = both(limits).await;
        let empty = Bytes::new;
        let large = 3 << 20;
        let batch = vec![
            message(0, empty(), vec![]),
            message(1, pattern(1, 1), vec![empty()]),
            message(
                -1,
                pattern(70_000, 2),
                vec![empty(), pattern(5, 3), empty()],
            ),
            message(i64::MAX, pattern(32 << 10, 4), vec![pattern(32 << 10, 5)]),
            message(
                i64::MIN,
                pattern((32 << 10) + 1, 6),
                vec![pattern((32 << 10) + 1, 7)],
            ),
            message(
                5,
                pattern(large, 8),
                vec![pattern(large, 9), pattern(8, 10), pattern(large, 11)],
            ),
            message(
                6,
                pattern(16 << 10, 12),
                (0..100).map(|n| pattern(n * 700, n)).collect(),
            ),
            small(7),
        ];
        let (sender, receiver) = (&mut both.caller.0, &mut both.callee.1);
        let all_at_once = async { sender.send(&batch).await.expect("sent") };
        let receive_all = async {
            for sent in &batch {
                assert_same(&receive(receiver).await, sent);
            }
        };
        hang(async { tokio::join!(all_at_once, receive_all) }).await;
        for sent in &batch {
            let one = async { sender.send(from_ref(sent)).await.expect("sent") };
            let (_, received) = hang(async { tokio::join!(one, receive(receiver)) }).await;
            assert_same(&received, sent);
        }
        sender.send::<Bytes>(&[]).await.expect("nothing is sent");
        assert_works(&mut both).await;
    }
}

#[tokio::test]
async fn storages_are_aligned_to_their_elements() {
    for limits in both_channels() {
        let mut both = both(limits).await;
        // The list of tensors says the widths here.
        let receiver = &mut both.callee.1;
        receiver.set_widths(|list, count| {
            assert_eq!(count, 8);
            list.iter().map(|&width| width.into()).collect()
        });
        for length in [0, 48, 64 << 10, 1 << 20, (1 << 20) + 16, 5 << 20] {
            let mut sent = small(1);
            sent.tensor_list = Bytes::from_static(&[1, 2, 4, 8, 16, 3, 0]);
            sent.storages = (0..8).map(|n| pattern(length, n)).collect();
            let send = async { both.caller.0.send(from_ref(&sent)).await.expect("sent") };
            let (_, received) = hang(async { tokio::join!(send, receive(receiver)) }).await;
            assert_same(&received, &sent);
            let widths: Vec<_> = received.storages.iter().map(Storage::width).collect();
            assert_eq!(widths, [1, 2, 4, 8, 8, 1, 1, 1]);
        }
    }
}

#[tokio::test]
async fn tr_5_bytes_behind_a_lock_are_looked_at_a_piece_at_a_time() {
    let mut both = both(limits()).await;
    let (sender, receiver) = (&mut both.caller.0, &mut both.callee.1);
    let locked = |bytes: &Bytes| Locked {
        length: bytes.len(),
        bytes: (bytes.clone(), 0).into(),
    };
    let bytes: Vec<_> = [0, 10, 20 << 20, 5 << 10, 3 << 20]
        .map(|length| pattern(length, length))
        .into();
    let sent = Outgoing {
        kind: 1,
        id: 2,
        payload: pattern(30_000, 0),
        tensor_list: Bytes::new(),
        storages: bytes.iter().map(locked).collect(),
    };
    let send = async { sender.send(from_ref(&sent)).await.expect("sent") };
    let (_, received) = hang(async { tokio::join!(send, receive(receiver)) }).await;
    let received: Vec<&[u8]> = received.storages.iter().map(Storage::bytes).collect();
    assert!(received == bytes);
    let looks = |index: usize| sent.storages[index].bytes.lock().expect("a lock").1;
    assert_eq!([looks(0), looks(1), looks(3)], [0, 1, 1]);
    assert!(looks(2) >= 20, "at most a mebibyte each");
}

#[tokio::test]
async fn a_storage_without_its_bytes_ends_the_pipe_only_if_something_has_left() {
    let mut both = both(limits()).await;
    let lying = |length| Outgoing {
        kind: 1,
        id: 2,
        payload: Bytes::new(),
        tensor_list: Bytes::new(),
        storages: vec![Locked {
            length,
            bytes: (pattern(length - 1, 0), 0).into(),
        }],
    };
    let error = both.caller.0.send(&[lying(10)]).await.expect_err("a lie");
    assert!(matches!(error, PipeError::Storage));
    assert!(both.caller.0.is_open());
    assert_works(&mut both).await;
    let error = both
        .caller
        .0
        .send(&[lying(1 << 20)])
        .await
        .expect_err("a lie");
    assert!(matches!(error, PipeError::Storage));
    assert!(!both.caller.0.is_open());
    // TR-9
    let error = both.caller.0.send(&[small(1)]).await.expect_err("torn");
    assert!(matches!(error, PipeError::Torn));
}

#[tokio::test]
async fn what_the_peer_would_refuse_is_not_begun() {
    let tight = Limits {
        payload: 1000,
        message: 5000,
        tensors: 3,
        ..limits()
    };
    let mut both = both(tight).await;
    let too_large = [
        message(1, pattern(1001, 0), vec![]),
        message(1, Bytes::new(), vec![pattern(4985, 0)]),
        message(1, Bytes::new(), vec![Bytes::new(); 4]),
    ];
    for message in too_large {
        let batch = [small(1), message];
        let error = both.caller.0.send(&batch).await.expect_err("too large");
        assert!(matches!(error, PipeError::TooLargeToSend { .. }));
        assert_works(&mut both).await;
    }
    let largest = message(1, pattern(1000, 0), vec![pattern(3984, 0)]);
    both.caller.0.send(from_ref(&largest)).await.expect("sent");
    assert_same(&receive(&mut both.callee.1).await, &largest);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_messages_go_both_ways_at_once() {
    let Both {
        listener,
        caller,
        callee,
    } = both(limits()).await;
    let mut tasks = Vec::new();
    let traffic = caller.0.traffic();
    for ((mut sender, mut receiver), theirs) in [(caller, 1000), (callee, 2000)] {
        tasks.push(tokio::spawn(async move {
            let ours = 3000 - theirs;
            let send = async {
                for id in 0..1000 {
                    sender.send(&[small(ours + id)]).await.expect("sent");
                }
            };
            let receive_all = async {
                for id in 0..1000 {
                    assert_same(&receive(&mut receiver).await, &small(theirs + id));
                }
            };
            tokio::join!(send, receive_all);
            sender.close();
            let end = hang(receiver.next()).await;
            assert!(end.expect("an orderly end").is_none());
        }));
    }
    for task in tasks {
        hang(task).await.expect("no panic");
    }
    assert_eq!(traffic.messages_sent.load(Ordering::Relaxed), 1000);
    assert_eq!(traffic.messages_received.load(Ordering::Relaxed), 1000);
    until_empty(&listener).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_tensors_go_both_ways_at_once() {
    let Both {
        listener: _listener,
        caller,
        callee,
    } = both(limits()).await;
    let mut tasks = Vec::new();
    for (mut sender, mut receiver) in [caller, callee] {
        tasks.push(tokio::spawn(async move {
            // A large payload as well, and small messages behind it (TR-3).
            let batch = [
                message(1, pattern(8 << 20, 1), vec![pattern(64 << 20, 2)]),
                small(2),
                message(3, Bytes::new(), vec![pattern(1 << 20, 3)]),
                small(4),
            ];
            let send = async { sender.send(&batch).await.expect("sent") };
            let receive_all = async {
                for sent in &batch {
                    assert_same(&receive(&mut receiver).await, sent);
                }
            };
            tokio::join!(send, receive_all);
        }));
    }
    for task in tasks {
        hang(task).await.expect("no panic");
    }
}

#[tokio::test]
async fn waiting_for_a_message_can_be_given_up_at_any_time() {
    let mut both = both(limits()).await;
    let sent = message(1, pattern(5 << 20, 1), vec![pattern(10 << 20, 2)]);
    let send = async { both.caller.0.send(from_ref(&sent)).await.expect("sent") };
    let receive = async {
        let mut given_up = 0;
        loop {
            let moment = Duration::from_micros(200);
            match timeout(moment, both.callee.1.next()).await {
                Ok(next) => return (next.expect("a pipe").expect("a message"), given_up),
                Err(_) => given_up += 1,
            }
        }
    };
    // The sender begins late, so that there is something to give up.
    let send = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        send.await;
    };
    let (_, (received, given_up)) = hang(async { tokio::join!(send, receive) }).await;
    assert_same(&received, &sent);
    assert!(given_up > 0);
}

#[tokio::test]
async fn tr_9_nothing_follows_a_message_that_was_given_up() {
    let mut both = both(limits()).await;
    let large = message(1, Bytes::new(), vec![pattern(64 << 20, 2)]);
    let send = both.caller.0.send(from_ref(&large));
    timeout(Duration::from_millis(50), send)
        .await
        .expect_err("nobody reads");
    let error = hang(both.caller.0.send(&[small(2)]))
        .await
        .expect_err("torn");
    assert!(matches!(error, PipeError::Torn));
    drop(both.caller);
    let error = hang(both.callee.1.next())
        .await
        .expect_err("half a message");
    assert!(matches!(error, PipeError::Closed(_)), "{error}");
    drop(both.callee);
    until_empty(&both.listener).await;
}

#[tokio::test]
async fn tr_8_all_that_was_sent_arrives_before_the_end() {
    let both = both(limits()).await;
    let (mut sender, mut receiver) = both.caller;
    let sent = message(1, pattern(100_000, 1), vec![pattern(100_000, 2)]);
    sender.send(&[sent.clone(), small(2)]).await.expect("sent");
    drop(sender);
    // Dropping one half closes nothing.
    let (mut back, mut there) = both.callee;
    assert_same(&receive(&mut there).await, &sent);
    back.send(&[small(3)]).await.expect("sent");
    assert_same(&receive(&mut receiver).await, &small(3));
    drop(receiver);
    assert_same(&receive(&mut there).await, &small(2));
    assert!(hang(there.next()).await.expect("an end").is_none());
    assert!(hang(there.next()).await.expect("an end").is_none());
    let error = back.send(&[small(4)]).await.expect_err("over");
    assert!(matches!(error, PipeError::Over));
    drop((back, there));
    until_empty(&both.listener).await;
}

#[tokio::test]
async fn a_pipe_outlives_its_listener() {
    let mut both = both(limits()).await;
    let gone = std::mem::replace(&mut both.listener, listener(limits()).await);
    let address = gone.local_addr().to_string();
    drop(gone);
    let gone = eventually_async("nobody listens", async || {
        Ok(connect(&address, "late", limits()).await.is_err())
    });
    gone.await.expect("it happens");
    assert_works(&mut both).await;
}

#[tokio::test]
async fn ipv6_works_as_well() {
    let address = "[::1]:0".parse().expect("an address");
    let mut listener = match Listener::bind(address, limits()).await {
        Ok(listener) => listener,
        // Not every machine has it.
        Err(PipeError::Bind { error, .. }) => return eprintln!("no IPv6 here: {error}"),
        Err(error) => panic!("{error}"),
    };
    let address = format!("uv://{}", listener.local_addr());
    let (mut sender, _receiver) = connect(&address, "six", limits()).await.expect("a pipe");
    sender.send(&[small(1)]).await.expect("sent");
    let (name, _, mut receiver) = hang(listener.accept()).await.expect("a pipe");
    assert_eq!(name, "six");
    assert_same(&receive(&mut receiver).await, &small(1));
}

#[tokio::test]
async fn a_listener_on_all_addresses_names_the_one_that_was_reached() {
    let address = "0.0.0.0:0".parse().expect("an address");
    let mut listener = Listener::bind(address, limits()).await.expect("a listener");
    let address = format!("127.0.0.1:{}", listener.local_addr().port());
    let _pipe = connect(&address, "any", limits()).await.expect("a pipe");
    hang(listener.accept()).await.expect("a pipe");
}

/// The timers of the connections to a port of this host that are open, as the system tells them.
#[cfg(target_os = "linux")]
fn timers(port: u16) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the system's table");
    let port = format!(":{port:04X}");
    let of_port = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, remote, "01", _, timer, ..] = fields[..] else {
            return None;
        };
        let is_it = local.ends_with(&port) || remote.ends_with(&port);
        is_it.then(|| timer[..2].to_owned())
    });
    of_port.collect()
}

/// The hosts ask each other whether they are there, at both ends of all three connections.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn tr_10_a_pipe_notices_when_the_other_host_is_gone() {
    let both = both(limits()).await;
    let port = both.listener.local_addr().port();
    // "02" is a timer that waits for silence; another one may run for a moment.
    until(|| timers(port) == ["02"; 6]).await;
}
