//! tarpc, over its serde transport: frames with a length in front, bincode inside.

use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures::StreamExt as _;
use tarpc::server::{BaseChannel, Channel as _};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::tokio_util::codec::{Framed, LengthDelimitedCodec};
use tarpc::{client, context, serde_transport, server};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

use super::{MAX_IN_FLIGHT, MAX_MESSAGE};
use crate::measure::{self, Caller, Turns};
use crate::results::Results;
use crate::transport::{Connection, Transport};

#[tarpc::service]
trait Calls {
    async fn nothing();
    async fn swallow(bytes: Bytes) -> usize;
}

#[derive(Clone)]
struct Serving;

impl Calls for Serving {
    async fn nothing(self, _: context::Context) {}

    async fn swallow(self, _: context::Context, bytes: Bytes) -> usize {
        bytes.len()
    }
}

fn framed<S: AsyncRead + AsyncWrite>(stream: S) -> Framed<S, LengthDelimitedCodec> {
    LengthDelimitedCodec::builder()
        .max_frame_length(MAX_MESSAGE)
        .new_framed(stream)
}

pub(super) async fn serve(transport: Transport) -> anyhow::Result<()> {
    match Connection::accept(transport).await? {
        Connection::Tcp(stream) => serve_on(stream).await,
        Connection::Unix(stream) => serve_on(stream).await,
    }
    Ok(())
}

async fn serve_on(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let config = server::Config {
        pending_response_buffer: MAX_IN_FLIGHT,
    };
    let transport = serde_transport::new(framed(stream), Bincode::default());
    let requests = BaseChannel::new(config, transport).execute(Serving.serve());
    // One task per call, as tarpc's documentation has it.
    let spawned = requests.for_each(|call| async {
        tokio::spawn(call);
    });
    spawned.await;
}

pub(super) async fn measure(
    transport: Transport,
    place: String,
    time: Duration,
) -> anyhow::Result<Results> {
    let client = match Connection::open(transport, &place).await? {
        Connection::Tcp(stream) => connect(stream),
        Connection::Unix(stream) => connect(stream),
    };
    measure::all(Client(client), time).await
}

fn connect(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> CallsClient {
    let mut config = client::Config::default();
    config.max_in_flight_requests = MAX_IN_FLIGHT;
    config.pending_request_buffer = MAX_IN_FLIGHT;
    let transport = serde_transport::new(framed(stream), Bincode::default());
    CallsClient::new(config, transport).spawn()
}

#[derive(Clone)]
struct Client(CallsClient);

impl Caller for Client {
    type Payload = Bytes;

    async fn call(&self) -> anyhow::Result<()> {
        let called = self.0.nothing(context::current()).await;
        called.context("tarpc's call failed")
    }

    fn start(&self, turns: Turns) -> JoinHandle<anyhow::Result<u64>> {
        let me = self.clone();
        tokio::spawn(async move { turns.count(|| me.call()).await })
    }

    fn payload(bytes: Vec<u8>) -> Bytes {
        bytes.into()
    }

    async fn send(&self, payload: &Bytes) -> anyhow::Result<usize> {
        let called = self.0.swallow(context::current(), payload.clone()).await;
        called.context("tarpc's call failed")
    }
}
