//! What peers say about gatherings is kept within bounds, and refused beyond, with an answer (TA-4).

use super::*;
use crate::agent::state::gatherings::Gatherings;

/// There is room for those that this worker comes to itself, however many others have begun.
#[test]
fn there_is_room_for_the_gatherings_that_this_worker_comes_to() {
    let gatherings = Gatherings::default();
    let begun = (0..10_000).take_while(|number| {
        let noted = gatherings.note(&number.to_string(), false, |_| {});
        noted.is_ok()
    });
    let begun = begun.count();
    assert!((1..1000).contains(&begun), "{begun}");
    // One of them goes on, and so does one that is awaited.
    let mut told = 0;
    gatherings.note("0", false, |_| told += 1).unwrap();
    gatherings.note("awaited", true, |_| told += 1).unwrap();
    gatherings
        .note("another", false, |_| told += 1)
        .unwrap_err();
    assert_eq!(told, 2);
}

/// PyTorch waits for the answer to each of its requests, also to those that no worker of its own would send.
#[tokio::test]
async fn requests_about_gatherings_that_make_no_sense_are_answered() {
    let (stage, mut played) = stage(&["python"], Limits::default(), |it| it).await;
    let python = &mut played[0];
    let long = "x".repeat(100_000);
    for (gathering, name) in [(&long[..], "python"), ("pythonrust0", "nobody")] {
        let mut writer = Writer::new(4);
        Udf::begin(
            &mut writer,
            "torch.distributed.rpc.api",
            "_gather_to_leader",
        );
        writer.text(gathering.as_bytes()).text(name.as_bytes());
        writer.tuple_of(2).empty_dict();
        Udf::end(&mut writer);
        let udf = writer.finish();
        let is_async = false;
        let call = Message::PythonCall {
            is_async,
            udf: &udf,
        };
        let (kind, bytes) = call.encode();
        let call = super::super::messages::ready(kind, 77, bytes);
        python.send_all(&stage, &[call]).await;
        let answer = python.answer().await.expect("it is answered");
        let error = error_of(&answer);
        assert!(error.contains("gathering"), "{error}");
    }
    assert!(stage.agent.shared().gatherings.open().is_empty());
    stage.worker.crash().await;
}
