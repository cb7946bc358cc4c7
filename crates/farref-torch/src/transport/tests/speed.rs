//! How fast pipes are here. Nothing is asserted about it. It is printed by
//! `FARREF_THOROUGH=1 cargo test --release speed -- --nocapture`.

use std::slice::from_ref;
use std::time::Instant;

use super::*;

async fn echo((mut sender, mut receiver): (PipeSender, PipeReceiver)) {
    while let Some(incoming) = receiver.next().await.expect("a pipe") {
        let storages = incoming.storages.into_iter();
        let answer = Outgoing {
            kind: incoming.kind,
            id: incoming.id,
            payload: incoming.payload,
            tensor_list: incoming.tensor_list,
            storages: storages
                .map(|storage| match storage {
                    Storage::One(bytes) => bytes,
                    wider => wider.bytes().to_vec(),
                })
                .collect(),
        };
        sender.send(&[answer]).await.expect("sent");
    }
}

async fn round_trips(what: &str, rounds: u32, sent: Outgoing) {
    let rounds = if thorough() { rounds } else { rounds.min(10) };
    let both = both(limits()).await;
    let echo = tokio::spawn(echo(both.callee));
    let (mut sender, mut receiver) = both.caller;
    let since = Instant::now();
    for _ in 0..rounds {
        let send = sender.send(from_ref(&sent));
        let (sent, received) = tokio::join!(send, receiver.next());
        sent.expect("sent");
        received.expect("a pipe").expect("a message");
    }
    let each = since.elapsed() / rounds;
    println!("{what}: {each:?} per round trip");
    sender.close();
    assert!(receiver.next().await.expect("an end").is_none());
    echo.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speed_of_round_trips() {
    round_trips("200 bytes", 2000, message(1, pattern(200, 0), vec![])).await;
    round_trips(
        "200 bytes and 4 KiB of tensors",
        1000,
        message(1, pattern(200, 0), vec![pattern(4096, 0)]),
    )
    .await;
    round_trips(
        "1 MiB of tensors",
        100,
        message(1, pattern(200, 0), vec![pattern(1 << 20, 0)]),
    )
    .await;
    round_trips(
        "large tensors",
        3,
        message(
            1,
            pattern(200, 0),
            vec![pattern(if thorough() { 64 << 20 } else { 4 << 20 }, 0)],
        ),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speed_one_way() {
    for size in [1, 32] {
        let mut both = both(limits()).await;
        let rounds = if thorough() { 5000 } else { 100 } / size;
        let batch: Vec<_> = (0..size).map(|id| small(id as i64)).collect();
        let since = Instant::now();
        let send = tokio::spawn(async move {
            for _ in 0..rounds {
                both.caller.0.send(&batch).await.expect("sent");
            }
            both.caller
        });
        for _ in 0..rounds * size {
            let next = both.callee.1.next().await;
            next.expect("a pipe").expect("a message");
        }
        let each = since.elapsed() / (rounds * size) as u32;
        println!("batches of {size}: {each:?} per message");
        drop(send.await.expect("no panic"));
    }
}
