//! A model that its server replaces while others use it, found by its name.
//!
//! `server` publishes a model; `client`s look it up, whoever starts first. No worker keeps a table for the others, no program
//! a `static` for its own. `cargo run -p farref-examples --example names` prints:
//!
//! ```text
//! the client waits for a model that is not there yet
//! model 1 says 2
//! model 2 says 3
//! the server is killed, and started again
//! model 1 says 2
//! found in the group, on server
//! a model is no text: `model` of worker `server` is a `..
//! all have ended together
//! ```

// A program, not a library.
#![allow(missing_docs)]

use anyhow::{Result, bail, ensure};
use farref::{Error, Peer, RRef, Worker};
use farref_examples::{Process, TIMEOUT};

#[derive(Debug)]
pub struct Model {
    version: u32,
}

#[farref::remote]
impl Model {
    pub async fn predict(&self, x: u32) -> u32 {
        x + self.version
    }

    pub async fn version(&self) -> u32 {
        self.version
    }
}

/// Trains another model, here on the server, and publishes it in the place of the last.
#[farref::remote]
async fn train(version: u32) -> farref::Result<()> {
    let me = Worker::current().expect("inside of a remote function");
    me.publish("model", &me.rref_to_object(Model { version })?)?;
    Ok(())
}

async fn use_model(model: &RRef<Model>) -> Result<()> {
    let (version, says) = (model.version().await?, model.predict(1).await?);
    println!("model {version} says {says}");
    ensure!(says == version + 1);
    Ok(())
}

async fn client(me: &Worker, server: &Peer) -> Result<()> {
    // It is looked up before it is there.
    let early = tokio::spawn(server.lookup::<Model>("model").versioned());
    println!("the client waits for a model that is not there yet");
    train::on(server, 1).await?;
    let (model, version) = early.await??;
    use_model(&model).await?;

    // Whoever has found a model has it; whoever wants the next one waits for it.
    let next = tokio::spawn(server.lookup::<Model>("model").newer_than(version));
    train::on(server, 2).await?;
    use_model(&next.await??).await?;
    ensure!(model.version().await? == 1, "it is still there");

    // Types are checked.
    me.publish("greeting", &me.rref("hello".to_owned())?)?;
    Ok(())
}

async fn main_worker() -> Result<()> {
    let rendezvous = farref_examples::free_rendezvous()?;
    let start = || Process::start("server", &[("FARREF_RENDEZVOUS", rendezvous.clone())]);
    let builder = Worker::builder("client").rendezvous(&rendezvous);
    let me = builder.fail_on_leaks(true).join().await?;

    let process = start()?;
    let server = me.wait_for_peer("server", TIMEOUT).await?;
    client(&me, &server).await?;

    // What a worker publishes goes with it. In the group it is found again, wherever it is.
    process.kill()?;
    println!("the server is killed, and started again");
    let found = tokio::spawn(me.lookup::<Model>("model"));
    server.gone().await?;
    let process = start()?;
    let server = me.wait_for_peer("server", TIMEOUT).await?;
    train::on(&server, 1).await?;
    let model = found.await??;
    use_model(&model).await?;
    println!("found in the group, on {}", model.owner()?.name());
    drop(model);

    match server.lookup::<String>("model").await {
        Err(Error::TypeMismatch(why)) => println!("a model is no text: {why}"),
        other => bail!("another type has to be an error: {other:?}"),
    }

    // Names that are left are no leaks.
    me.shutdown().await?;
    process.wait()?;
    println!("all have ended together");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::was_started() {
        let me = Worker::from_env().fail_on_leaks(true).join().await?;
        me.serve().await?;
        return Ok(());
    }
    main_worker().await
}
