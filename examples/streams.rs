//! A pipeline of streams: words flow from worker to worker as they are asked for, and nobody has all of them.
//!
//! `reader` has a text that never ends, `counter` counts words as they come, `main` looks at the first results and drops
//! the rest, which ends all of it. `cargo run -p farref-examples --example streams` prints:
//!
//! ```text
//! the far reference the: 4 words
//! the was said 3 times, after 7 words
//! nothing is read any more
//! reader was lost in the middle of a stream
//! ```

// A program, not a library.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as TaskContext, Poll, ready};

use anyhow::{Context as _, Result, bail, ensure};
use farref::{Error, Stream, Streaming, Worker};
use farref_examples::until;

/// How many texts are being read in this process.
static READING: AtomicU32 = AtomicU32::new(0);

/// Any stream will do. Crates such as `futures` and `tokio-stream` have many; here is one by hand.
struct Words(usize);

impl Stream for Words {
    type Item = String;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<Option<String>> {
        let text = ["the", "far", "reference"];
        self.0 += 1;
        Poll::Ready(Some(text[(self.0 - 1) % text.len()].to_owned()))
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        READING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A stream comes back. Nothing is made before somebody reads it.
#[farref::remote]
async fn words() -> impl Stream<Item = String> {
    READING.fetch_add(1, Ordering::SeqCst);
    Words(0)
}

#[farref::remote]
async fn reading() -> u32 {
    READING.load(Ordering::SeqCst)
}

/// Says how often each word has come.
struct Counts {
    words: Streaming<String>,
    counts: BTreeMap<String, u32>,
}

impl Stream for Counts {
    /// What goes wrong on the way is handed on.
    type Item = farref::Result<(String, u32)>;

    fn poll_next(self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let word = ready!(Pin::new(&mut this.words).poll_next(context));
        Poll::Ready(word.map(|word| {
            let word = word?;
            let count = this.counts.entry(word.clone()).or_default();
            *count += 1;
            Ok((word, *count))
        }))
    }
}

/// A stream is an argument, and another one is the result: a `Streaming<(String, u32)>`, which an error ends.
#[farref::remote]
async fn count(words: Streaming<String>) -> impl Stream<Item = farref::Result<(String, u32)>> {
    let counts = BTreeMap::new();
    Counts { words, counts }
}

/// So that it can be killed.
#[farref::remote]
async fn die() {
    std::process::exit(0);
}

async fn run(me: &Worker) -> Result<()> {
    let [reader, counter] = [me.peer("reader")?, me.peer("counter")?];
    let mut text = words::on(&reader).await?;
    let mut first = Vec::new();
    for _ in 0..4 {
        first.push(text.next().await.context("it never ends")??);
    }
    println!("{}: {} words", first.join(" "), first.len());
    drop(text);

    // From `reader` to `counter`: what is counted does not come here, only the counts do.
    let text = words::on(&reader).await?;
    let mut counts = count::on(&counter, text).await?;
    let mut came = 0;
    while let Some(counted) = counts.next().await {
        let (word, times) = counted?;
        came += 1;
        if times == 3 {
            println!("{word} was said {times} times, after {came} words");
            break;
        }
    }
    drop(counts); // and with it what `counter` reads, and what `reader` makes
    let has_ended = async || Ok(reading::on(&reader).await? == 0);
    until("all streams have ended", has_ended).await?;
    println!("nothing is read any more");

    // The death of whoever makes the items is an error that says so.
    let mut text = words::on(&reader).await?;
    ensure!(text.next().await.transpose()?.is_some());
    ensure!(die::on(&reader).await.is_err());
    loop {
        match text.next().await.context("it never ends")? {
            Ok(_) => {} // had come before
            Err(Error::PeerLost { peer, .. }) => {
                println!("{peer} was lost in the middle of a stream");
                return Ok(());
            }
            Err(other) => bail!(other),
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::launch(&["main", "reader", "counter"])? {
        return Ok(());
    }
    let me = Worker::from_env().join().await?;
    match me.name() {
        "main" => run(&me).await?,
        _ => return Ok(me.serve().await?),
    }
    Ok(me.shutdown().await?)
}
