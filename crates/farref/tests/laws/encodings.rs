//! Arguments, results and values are whatever serde can write: they arrive as they were sent.

use std::collections::BTreeMap;

use farref::testing::Cluster;
use farref::{Blob, Error, Peer, RRef, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Batch {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    label: Option<u32>,
    epoch: u32,
    rows: Vec<u32>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Either {
    Number(u32),
    Text(String),
    Large { data: Blob },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Shape {
    Dot,
    Circle { radius: f32 },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Flat {
    #[serde(flatten)]
    shape: Shape,
    more: BTreeMap<String, Value>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    first: RRef<u32>,
    data: Blob,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    second: RRef<u32>,
}

#[farref::remote]
async fn print(batch: Batch) -> String {
    format!("{batch:?}")
}

#[farref::remote]
async fn echo(batch: Batch) -> Batch {
    batch
}

#[farref::remote]
async fn echo_all(either: Vec<Either>, flat: Flat, json: Value) -> (Vec<Either>, Flat, Value) {
    (either, flat, json)
}

#[farref::remote]
async fn parse(text: String) -> Result<Value, serde_json::Error> {
    serde_json::from_str(&text)
}

#[farref::remote]
async fn fulfil(order: Order) -> Result<(u32, u32, usize)> {
    let (first, second) = (order.first.to_here().await?, order.second.to_here().await?);
    Ok((first, second, order.data.len()))
}

async fn start() -> (Cluster, Peer) {
    let cluster = Cluster::start(2).await.unwrap();
    let peer = cluster.worker(0).peer("worker1").unwrap();
    (cluster, peer)
}

#[tokio::test]
async fn a_field_that_serde_leaves_out_does_not_shift_the_others() {
    let (cluster, peer) = start().await;
    for label in [None, Some(1)] {
        let batch = Batch {
            label,
            epoch: 0,
            rows: vec![2, 10, 20],
        };
        let printed = print::on(&peer, batch.clone()).await.unwrap();
        assert_eq!(printed, format!("{batch:?}"));
        assert_eq!(echo::on(&peer, batch.clone()).await.unwrap(), batch);
        let value = echo::on(&peer, batch.clone()).remote();
        assert_eq!(value.to_here().await.unwrap(), batch);
    }
    cluster.shutdown().await.unwrap();
}

#[tokio::test]
async fn types_that_look_at_what_came_go_there_and_back() {
    let (cluster, peer) = start().await;
    let data = Blob::from(vec![7; 100_000]);
    let either = vec![
        Either::Text("x".to_owned()),
        Either::Large { data },
        Either::Number(0),
    ];
    let json = json!({"a": [1, null, -0.5], "b": {"c": "d"}});
    for shape in [Shape::Dot, Shape::Circle { radius: 0.1 }] {
        let more = BTreeMap::from([("x".to_owned(), json.clone())]);
        let flat = Flat { shape, more };
        let sent = (either.clone(), flat, json.clone());
        let back = echo_all::on(&peer, sent.0.clone(), sent.1.clone(), sent.2.clone());
        assert_eq!(back.await.unwrap(), sent);
    }
    let parsed = parse::on(&peer, json.to_string()).remote();
    assert_eq!(parsed.to_here().await.unwrap(), json);
    drop(parsed);
    cluster.shutdown().await.unwrap();
}

/// References and buffers are collected while a value is written, and once only (R5).
#[tokio::test]
async fn references_and_buffers_beside_a_field_that_is_left_out_arrive_once() {
    let (cluster, peer) = start().await;
    let me = cluster.worker(0);
    let (first, second) = (me.rref(1_u32).unwrap(), me.rref(2_u32).unwrap());
    for note in [None, Some("x".to_owned())] {
        let order = Order {
            first: first.clone(),
            data: Blob::from(vec![7; 100_000]),
            note,
            second: second.clone(),
        };
        assert_eq!(fulfil::on(&peer, order).await.unwrap(), (1, 2, 100_000));
    }
    drop((first, second));
    cluster.shutdown().await.unwrap();
}

/// `rref` does not know what the value will be read with.
#[tokio::test]
async fn a_value_that_cannot_be_read_says_so_in_farref_s_own_words() {
    #[derive(Debug, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Local {
        Number(u32),
    }

    #[farref::remote]
    async fn fetch(value: RRef<Local>) -> Result<bool> {
        let error = value.to_here().await.unwrap_err();
        let text = error.to_string();
        let ours = text.contains("untagged") && !text.to_lowercase().contains("postcard");
        Ok(matches!(error, Error::Codec { .. }) && ours)
    }

    let (cluster, peer) = start().await;
    let value = cluster.worker(0).rref(Local::Number(1)).unwrap();
    assert!(fetch::on(&peer, value.clone()).await.unwrap());
    drop(value);
    cluster.shutdown().await.unwrap();
}
