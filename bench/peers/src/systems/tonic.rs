//! tonic: gRPC, that is protobuf over HTTP/2, without TLS.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use self::generated::calls_client::CallsClient;
use self::generated::calls_server::{Calls, CallsServer};
use super::{MAX_IN_FLIGHT, MAX_MESSAGE};
use crate::measure::{self, Caller, Turns};
use crate::results::Results;
use crate::transport::{Connection, Transport};

/// HTTP/2's window for a whole connection. Half of it, in bytes, is what h2 lets small frames in flight cost before it
/// ends the connection (`too_many_data_frames`), which 4096 calls in flight reach with the default of 1 MiB.
const CONNECTION_WINDOW: u32 = 64 << 20;

mod generated {
    use super::{Bulk, Length, Nothing};

    include!(concat!(env!("OUT_DIR"), "/peers.Calls.rs"));
}

#[derive(Clone, PartialEq, Message)]
pub struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub struct Bulk {
    #[prost(bytes = "bytes", tag = "1")]
    pub bytes: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub struct Length {
    #[prost(uint64, tag = "1")]
    pub bytes: u64,
}

struct Serving;

#[tonic::async_trait]
impl Calls for Serving {
    async fn nothing(&self, _: Request<Nothing>) -> Result<Response<Nothing>, Status> {
        Ok(Response::new(Nothing {}))
    }

    async fn swallow(&self, request: Request<Bulk>) -> Result<Response<Length>, Status> {
        let bytes = request.get_ref().bytes.len() as u64;
        Ok(Response::new(Length { bytes }))
    }
}

pub(super) async fn serve(transport: Transport) -> anyhow::Result<()> {
    let connection = Connection::accept(transport).await?;
    let calls = CallsServer::new(Serving).max_decoding_message_size(MAX_MESSAGE);
    let router = Server::builder()
        .max_concurrent_streams(MAX_IN_FLIGHT as u32)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .add_service(calls);
    match connection {
        Connection::Tcp(stream) => router.serve_with_incoming(only(stream)).await?,
        Connection::Unix(stream) => router.serve_with_incoming(only(stream)).await?,
    }
    Ok(())
}

/// A listener whose one connection has come.
fn only<S>(stream: S) -> impl stream::Stream<Item = io::Result<S>> {
    stream::iter([Ok(stream)]).chain(stream::pending())
}

pub(super) async fn measure(
    transport: Transport,
    place: String,
    time: Duration,
) -> anyhow::Result<Results> {
    let channel = match transport {
        Transport::Tcp => endpoint(format!("http://{place}"))?.connect().await?,
        Transport::Unix | Transport::Shm => {
            let connector = tower::service_fn(move |_| {
                let place = place.clone();
                async move { UnixStream::connect(place).await.map(TokioIo::new) }
            });
            // The address is not looked at.
            let endpoint = endpoint("http://localhost".to_owned())?;
            endpoint.connect_with_connector(connector).await?
        }
    };
    let client = CallsClient::new(channel).max_encoding_message_size(MAX_MESSAGE);
    measure::all(Client(client), time).await
}

fn endpoint(address: String) -> anyhow::Result<Endpoint> {
    let endpoint = Endpoint::from_shared(address)?;
    Ok(endpoint
        .tcp_nodelay(true)
        .buffer_size(MAX_IN_FLIGHT)
        .initial_connection_window_size(CONNECTION_WINDOW))
}

#[derive(Clone)]
struct Client(CallsClient<Channel>);

impl Caller for Client {
    type Payload = Bytes;

    async fn call(&self) -> anyhow::Result<()> {
        // Every call has a client of its own: making it is cheap, and tonic's documentation has it so.
        self.0.clone().nothing(Nothing {}).await?;
        Ok(())
    }

    fn start(&self, turns: Turns) -> JoinHandle<anyhow::Result<u64>> {
        let me = self.clone();
        tokio::spawn(async move { turns.count(|| me.call()).await })
    }

    fn payload(bytes: Vec<u8>) -> Bytes {
        bytes.into()
    }

    async fn send(&self, payload: &Bytes) -> anyhow::Result<usize> {
        let bytes = payload.clone();
        let length = self.0.clone().swallow(Bulk { bytes }).await?;
        Ok(length.get_ref().bytes as usize)
    }
}
