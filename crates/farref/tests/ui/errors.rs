//! A function's own error comes to the caller if it can be sent, and is of the type that it returns.

use farref::Peer;

#[derive(Debug, thiserror::Error)]
#[error("closed")]
struct Closed;

#[derive(Debug, serde::Serialize, serde::Deserialize, thiserror::Error)]
enum Refusal {
    #[error("too few")]
    TooFew,
}

/// Neither an error nor text.
#[derive(serde::Serialize, serde::Deserialize)]
struct Code(u32);

mod mine {
    /// Called so, and something else.
    pub enum Result<T> {
        Good(T),
    }
}

#[farref::remote]
async fn open() -> Result<u32, Closed> {
    Err(Closed)
}

#[farref::remote]
async fn buy() -> Result<u32, Refusal> {
    Err(Refusal::TooFew)
}

#[farref::remote]
async fn look() -> u32 {
    3
}

#[farref::remote]
async fn count() -> Result<u32, Code> {
    Err(Code(3))
}

#[farref::remote]
async fn guess() -> mine::Result<u32> {
    mine::Result::Good(3)
}

async fn errors(peer: Peer) -> farref::Result<()> {
    // The error cannot be sent.
    let _ = open::on(&peer).result().await?;
    let _ = open::on(&peer).start().result().await?;
    // There is none.
    let _ = look::on(&peer).result().await?;
    // It is another one.
    let _: Result<u32, String> = buy::on(&peer).result().await?;
    // A list of calls of several functions.
    let _: Vec<farref::Call<u32>> = vec![look::on(&peer), buy::on(&peer)];
    Ok(())
}

fn main() {}
