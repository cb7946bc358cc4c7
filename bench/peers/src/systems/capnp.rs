//! Cap'n Proto's RPC. It works on one thread in each process: its types cannot move between threads.

use std::rc::Rc;
use std::time::Duration;

use capnp::Error;
use capnp::message::ReaderOptions;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, new_client, twoparty};
use futures::AsyncReadExt as _;
use futures::io::{BufReader, BufWriter};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{JoinHandle, spawn_local};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use crate::calls_capnp::calls;
use crate::measure::{self, Caller, Turns};
use crate::results::Results;
use crate::transport::{Connection, Transport};

struct Serving;

impl calls::Server for Serving {
    async fn nothing(
        self: Rc<Self>,
        _: calls::NothingParams,
        _: calls::NothingResults,
    ) -> Result<(), Error> {
        Ok(())
    }

    async fn swallow(
        self: Rc<Self>,
        params: calls::SwallowParams,
        mut results: calls::SwallowResults,
    ) -> Result<(), Error> {
        let length = params.get()?.get_bytes()?.len();
        results.get().set_length(length as u64);
        Ok(())
    }
}

/// Buffered on both sides, as capnp-rpc's documentation advises.
fn network(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    side: Side,
) -> Box<dyn capnp_rpc::VatNetwork<Side>> {
    let (reader, writer) = stream.compat().split();
    let mut options = ReaderOptions::new();
    options.traversal_limit_in_words(None);
    let (reader, writer) = (BufReader::new(reader), BufWriter::new(writer));
    Box::new(twoparty::VatNetwork::new(reader, writer, side, options))
}

pub(super) async fn serve(transport: Transport) -> anyhow::Result<()> {
    let network = match Connection::accept(transport).await? {
        Connection::Tcp(stream) => network(stream, Side::Server),
        Connection::Unix(stream) => network(stream, Side::Server),
    };
    let client: calls::Client = new_client(Serving);
    RpcSystem::new(network, Some(client.client)).await?;
    Ok(())
}

pub(super) async fn measure(
    transport: Transport,
    place: String,
    time: Duration,
) -> anyhow::Result<Results> {
    let network = match Connection::open(transport, &place).await? {
        Connection::Tcp(stream) => network(stream, Side::Client),
        Connection::Unix(stream) => network(stream, Side::Client),
    };
    let mut system = RpcSystem::new(network, None);
    let client: calls::Client = system.bootstrap(Side::Server);
    spawn_local(system);
    measure::all(Client(client), time).await
}

#[derive(Clone)]
struct Client(calls::Client);

impl Caller for Client {
    type Payload = Vec<u8>;

    async fn call(&self) -> anyhow::Result<()> {
        self.0.nothing_request().send().promise.await?;
        Ok(())
    }

    fn start(&self, turns: Turns) -> JoinHandle<anyhow::Result<u64>> {
        let me = self.clone();
        spawn_local(async move { turns.count(|| me.call()).await })
    }

    fn payload(bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    async fn send(&self, payload: &Vec<u8>) -> anyhow::Result<usize> {
        let mut request = self.0.swallow_request();
        request.get().set_bytes(payload);
        let answer = request.send().promise.await?;
        Ok(answer.get()?.get_length() as usize)
    }
}
