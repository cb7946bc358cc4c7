//! TA-4: a peer that breaks the rules is cut off, and its pipe ends, whatever the peer does meanwhile.

use std::sync::atomic::Ordering;

use farref::Blob;
use farref_testkit::{eventually, eventually_async};

use super::*;
use crate::agent::state::links::{Link, lock};
use crate::transport::Traffic;
use crate::{PyValue, py_call};

/// The peer answers what nobody asked, over the pipe that this worker has opened.
async fn answer_unasked(stage: &Stage, python: &mut Played) {
    let peer = stage.worker.peer("python").unwrap();
    let call = tokio::spawn(async move { py_call::<PyValue>(&peer, "shop.next", ()).await });
    let request = python.request().await;
    let (kind, bytes) = Message::Ack.encode();
    let unasked = super::super::messages::ready(kind, request.message.id + 1000, bytes);
    drop(request.back.send(unasked));
    let outcome = timeout(TEST_TIMEOUT, call).await.unwrap().unwrap();
    outcome.expect_err("the peer is cut off");
}

fn call_of(name: &str) -> Outgoing<Part> {
    let udf = udf("cut_off", name, |writer| {
        writer.int(1);
    });
    let call = Message::PythonCall {
        is_async: false,
        udf: &udf,
    };
    let (kind, bytes) = call.encode();
    super::super::messages::ready(kind, 77, bytes)
}

/// It may have calls open, and say nothing more before they are answered, which they never are.
#[tokio::test]
async fn the_pipe_of_a_peer_that_is_cut_off_ends_though_nothing_comes_over_it() {
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
    let python = &mut played[0];
    python
        .send_all(&stage, &[call_of("no_such_function")])
        .await;
    drop(python.answer().await.expect("it is answered"));
    answer_unasked(&stage, python).await;
    assert!(python.answer().await.is_none(), "its pipe has ended");
    stage.worker.crash().await;
}

#[farref::remote(python = "cut_off.large")]
async fn large(_: i64) -> Blob {
    Blob::from(vec![0_u8; 64 << 20])
}

/// Opens a pipe as a stranger, and asks something. `None`: there is no place for it.
async fn stranger(stage: &Stage) -> Option<(PipeSender, PipeReceiver)> {
    let pipe = connect(&stage.address, "stranger", Limits::default()).await;
    let (mut sender, mut receiver) = pipe.ok()?;
    sender.send(&[call_of("no_such_function")]).await.ok()?;
    let answer = timeout(TEST_TIMEOUT, receiver.next()).await;
    let answer = answer.expect("no hanging").ok()?;
    answer.map(|_| (sender, receiver))
}

/// IN-4, TR-7: nobody waits for it to read what it was to be told. Its place is another's.
#[tokio::test]
async fn a_peer_that_is_cut_off_has_no_place_though_it_does_not_read() {
    for breaks_frames in [false, true] {
        let limits = Limits {
            pipes: 1,
            unclaimed: 1,
            tensors: 4,
            ..Limits::default()
        };
        let (stage, mut played) = stage(&["python"], limits, |it| it).await;
        let python = &mut played[0];
        let pipe = connect(&stage.address, "python", Limits::default()).await;
        python.pipe = Some(pipe.unwrap());
        python.send_all(&stage, &[call_of("large")]).await;
        // What the system takes of the answer is written, which is not all.
        let is_begun = |link: &Arc<Link>| {
            let pipes = lock(&link.traffic);
            let sent = |pipe: &Arc<Traffic>| pipe.bytes_sent.load(Ordering::Relaxed);
            pipes.iter().any(|pipe| sent(pipe) > 1 << 10)
        };
        let shared = stage.agent.shared();
        let begun = eventually("it is answered", || {
            shared
                .link_by_name("python")
                .is_some_and(|link| is_begun(&link))
        });
        begun.await.expect("it is answered");
        let _other = stranger(&stage).await.expect("the other place");
        assert!(stranger(&stage).await.is_none(), "all places are taken");
        match breaks_frames {
            false => answer_unasked(&stage, python).await,
            true => {
                // More tensors than it may send.
                let mut message = call_of("large");
                message.storages = vec![Part::from(vec![0_u8]); 5];
                python.send_all(&stage, &[message]).await;
            }
        }
        let room = eventually_async("a place is free", async || {
            Ok(stranger(&stage).await.is_some())
        });
        let room = room.await;
        assert!(room.is_ok(), "it keeps its place, frames: {breaks_frames}");
        stage.worker.crash().await;
    }
}
