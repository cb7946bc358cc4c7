//! Vectors of numbers, which travel beside their values wherever farref can see them.

use anyhow::Result;
use farref::{Blob, RRef, Streaming};

use super::streams::sources::Each;
use crate::cluster::{finish, pair};

/// So many numbers are large, whatever they are.
const LARGE: usize = 5000;

#[farref::remote]
async fn bytes(numbers: Vec<u8>) -> Vec<u8> {
    numbers
}

#[farref::remote]
fn floats(numbers: Vec<f32>, by: f32) -> Result<Vec<f32>, String> {
    match by {
        0.0 => Err("by nothing".to_owned()),
        by => Ok(numbers.into_iter().map(|number| by * number).collect()),
    }
}

#[farref::remote]
async fn mixed(
    name: String,
    first: Vec<u16>,
    blob: Blob,
    second: Option<Vec<i64>>,
    rows: Vec<Vec<f64>>,
) -> (String, Vec<u16>, Blob, Option<Vec<i64>>, Vec<Vec<f64>>) {
    (name, first, blob, second, rows)
}

#[farref::remote]
async fn some(numbers: Option<Vec<u32>>) -> Option<Vec<u32>> {
    numbers
}

#[farref::remote]
async fn several(rows: Vec<Vec<i8>>) -> Vec<Vec<i8>> {
    rows
}

#[tokio::test]
async fn arguments_and_results_arrive_as_they_were() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let itself = cluster.worker(0).me();
    for count in [0, 1, 100, LARGE, 100 * LARGE] {
        let numbers: Vec<u8> = (0..count).map(|n| n as u8).collect();
        for peer in [&peer, &itself] {
            assert_eq!(bytes::on(peer, numbers.clone()).await?, numbers);
        }
        let numbers: Vec<f32> = (0..count).map(|n| n as f32).collect();
        let twice: Vec<f32> = numbers.iter().map(|number| 2.0 * number).collect();
        assert_eq!(floats::on(&peer, numbers.clone(), 2.0).await?, twice);
        let failed = floats::on(&peer, numbers, 0.0).result().await?;
        assert_eq!(failed, Err("by nothing".to_owned()));

        let numbers: Vec<u32> = (0..count).map(|n| !(n as u32)).collect();
        for numbers in [Some(numbers), None] {
            assert_eq!(some::on(&peer, numbers.clone()).await?, numbers);
        }
        let rows = vec![vec![-1; count], vec![], vec![2; 3], vec![3; 2 * count]];
        assert_eq!(several::on(&peer, rows.clone()).await?, rows);

        let name = "name".to_owned();
        let first: Vec<u16> = (0..count).map(|n| n as u16).collect();
        let blob = Blob::from(vec![7; count]);
        let second: Option<Vec<i64>> = Some((0..count).map(|n| -(n as i64)).collect());
        let rows = vec![vec![0.5; count], vec![], vec![1.5; count]];
        let sent = (name, first, blob, second, rows);
        let (name, first, blob, second, rows) = sent.clone();
        let came = mixed::on(&peer, name, first, blob, second, rows).await?;
        assert_eq!(came, sent);
    }
    drop((peer, itself));
    finish(cluster).await
}

pub(crate) struct Table(Vec<f64>);

#[farref::remote]
impl Table {
    pub(crate) fn new(rows: Vec<f64>) -> Self {
        Self(rows)
    }

    pub(crate) async fn add(&mut self, numbers: Vec<f64>) -> Vec<f64> {
        for (row, number) in self.0.iter_mut().zip(numbers) {
            *row += number;
        }
        self.0.clone()
    }
}

/// R6, R7: what is fetched is still there afterwards.
#[tokio::test]
async fn vectors_that_stay_there_can_be_fetched_again_and_again() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let numbers: Vec<u8> = (0..LARGE).map(|n| n as u8).collect();
    let there: RRef<Vec<u8>> = bytes::on(&peer, numbers.clone()).remote();
    let here = cluster.worker(0).rref(numbers.clone())?;
    for _ in 0..3 {
        assert_eq!(there.to_here().await?, numbers);
        assert_eq!(here.to_here().await?, numbers);
    }
    assert_eq!(*here.local().await?, numbers);

    let table = Table::new_on(&peer, vec![1.0; LARGE]).remote();
    let sum = table.add(vec![0.5; LARGE]).remote();
    assert_eq!(sum.to_here().await?, vec![1.5; LARGE]);
    assert_eq!(table.add(vec![0.5; LARGE]).await?, vec![2.0; LARGE]);
    drop((there, here, table, sum, peer));
    finish(cluster).await
}

#[farref::remote]
async fn rows(count: usize) -> Streaming<Vec<f32>> {
    let row = move |n: usize| vec![n as f32; if n.is_multiple_of(3) { 2 } else { count }];
    Streaming::new(Each((0..20).map(row)))
}

/// T1
#[tokio::test]
async fn items_arrive_as_they_were() -> Result<()> {
    let (cluster, peer) = pair().await?;
    // Rows that fill a batch, and such as have one with small ones.
    for long in [3 * LARGE, LARGE / 4] {
        let mut stream = rows::on(&peer, long).await?;
        for n in 0..20_usize {
            let row = stream.next().await.transpose()?;
            let count = if n.is_multiple_of(3) { 2 } else { long };
            assert_eq!(row, Some(vec![n as f32; count]));
        }
        assert!(stream.next().await.is_none());
    }
    drop(peer);
    finish(cluster).await
}
