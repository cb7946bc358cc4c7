//! The laws of values and calls in the foreign form, between Rust workers: what Python sees of it is told by
//! `python/tests/test_mixed.py`.

use std::collections::BTreeMap;

use farref::testing::Cluster;
use farref::{Blob, Buffer, CodecError, Error, Peer, RRef, ValueCodec, Worker};
use proptest::prelude::*;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::codec::PickleCodec;
use super::wire::Memory;
use super::*;
use crate::pickle::Writer;
use crate::{Keywords, PyException};

#[farref::remote(python = "laws.echo")]
async fn echo(value: PyValue) -> PyValue {
    value
}

#[farref::remote(python = "laws.sum")]
async fn sum(first: i64, second: Option<i64>) -> i64 {
    first + second.unwrap_or(100)
}

#[farref::remote(python = "laws.named")]
async fn named(first: i64, others: Keywords<i64>) -> (i64, Vec<(String, i64)>) {
    (first, others.0)
}

#[farref::remote(python = "laws.refuse")]
async fn refuse(why: String) -> Result<(), PyException> {
    Err(PyException::new("KeyError", why))
}

#[farref::remote(python = "laws.sizes")]
async fn sizes(blob: Blob, buffer: Buffer) -> (usize, usize) {
    (
        blob.len(),
        buffer.into_vec::<u64>().map_or(0, |numbers| numbers.len()),
    )
}

#[farref::remote(python = "laws.who")]
async fn who(peer: Peer) -> (String, Peer) {
    (peer.name().to_owned(), peer)
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Till(u64);

#[farref::remote(python = "laws.Till")]
impl Till {
    pub(super) fn new(coins: u64) -> Self {
        Self(coins)
    }

    pub(super) fn put(&mut self, coins: u64) -> u64 {
        self.0 += coins;
        self.0
    }
}

#[farref::remote(python = "laws.double")]
async fn double(till: RRef<Till>) -> farref::Result<RRef<Till>> {
    let coins = till.to_here().await?.0;
    till.put(coins).await?;
    Ok(till)
}

async fn two() -> Result<(Cluster, Peer), Error> {
    let cluster = Cluster::start(2).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    Ok((cluster, peer))
}

#[tokio::test]
async fn functions_are_called_by_their_python_names_with_arguments_by_place_and_by_name()
-> Result<(), Error> {
    let (cluster, peer) = two().await?;
    assert_eq!(py_call::<i64>(&peer, "laws.sum", (1, 2)).await?, 3);
    assert_eq!(py_call::<i64>(&peer, "laws.sum", (1,)).await?, 101);
    let named = PyCall::new("laws.sum", ())
        .keyword("second", 5)
        .keyword("first", 6);
    assert_eq!(named.on::<i64>(&peer).await?, 11);
    // What has a parameter of its own is none of those that are left, and nothing is given twice.
    let named = PyCall::new("laws.named", ())
        .keyword("second", 5)
        .keyword("first", 6);
    let found: (i64, Vec<(String, i64)>) = named.on(&peer).await?;
    assert_eq!(found, (6, vec![("second".to_owned(), 5)]));
    let twice = PyCall::new("laws.named", (1,)).keyword("first", 6);
    let twice = twice.on::<PyValue>(&peer).await;
    assert!(matches!(twice, Err(Error::Codec { .. })), "{twice:?}");
    // The worker itself is a peer as any other.
    let me = cluster.worker(0).me();
    assert_eq!(py_call::<i64>(&me, "laws.sum", (1, 2)).await?, 3);
    for (name, arguments) in [("laws.none", 1), ("laws.Till.put", 1)] {
        let call = py_call::<PyValue>(&peer, name, (arguments,));
        let error = call.await.unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
    let too_many = py_call::<i64>(&peer, "laws.sum", (1, 2, 3)).await;
    assert!(matches!(too_many, Err(Error::Codec { .. })), "{too_many:?}");
    cluster.shutdown().await
}

#[tokio::test]
async fn a_value_that_stays_keeps_its_type_and_answers_in_the_form_that_it_is_asked_in()
-> Result<(), Error> {
    let (cluster, peer) = two().await?;
    let till = py_remote(&peer, "laws.Till", (3,));
    assert_eq!(py_method::<_, u64>(&till, "put", (4,)).await?, 7);
    // As Python gets it, and as Rust does.
    assert_eq!(till.cast::<PyValue>()?.to_here().await?, PyValue::Int(7));
    assert_eq!(till.cast::<Till>()?.put(1).await?, 8);
    let doubled: RRef<Till> = py_call(&peer, "laws.double", (till.clone(),)).await?;
    assert_eq!(doubled, till.cast::<Till>()?);
    assert_eq!(doubled.to_here().await?, Till(16));
    let unknown = py_method::<_, u64>(&till, "take", (4,)).await;
    assert!(
        matches!(unknown, Err(Error::NoSuchFunction { .. })),
        "{unknown:?}"
    );
    // What a method returns may stay as well; and a value of this worker's own.
    let coins: RRef<PyObject> = PyCall::new("put", (1,)).on_value(&till).remote();
    assert_eq!(coins.cast::<u64>()?.to_here().await?, 17);
    let own = py_remote(&cluster.worker(0).me(), "laws.Till", (1,));
    assert_eq!(py_method::<_, u64>(&own, "put", (1,)).await?, 2);
    drop((till, doubled, coins, own));
    cluster.shutdown().await
}

#[tokio::test]
async fn errors_name_their_class() -> Result<(), Error> {
    let (cluster, peer) = two().await?;
    let error = py_call::<()>(&peer, "laws.refuse", ("x",))
        .await
        .unwrap_err();
    let exception =
        PyException::of(&error).map(|it| (it.class().to_owned(), it.message().to_owned()));
    assert_eq!(exception, Some(("KeyError".to_owned(), "x".to_owned())));
    cluster.shutdown().await
}

#[tokio::test]
async fn memory_and_peers_travel_beside_the_pickle() -> Result<(), Error> {
    let (cluster, peer) = two().await?;
    for size in [0, 10, 100_000_usize] {
        let blob = Blob::from(vec![1; size]);
        let buffer = Buffer::from_vec(vec![7_u64; size]);
        let found: (usize, usize) = py_call(&peer, "laws.sizes", (blob.clone(), buffer)).await?;
        assert_eq!(found, (size, size));
        let back: PyValue = py_call(&peer, "laws.echo", (blob.clone(),)).await?;
        assert_eq!(back, PyValue::Bytes(blob));
    }
    let me = cluster.worker(0).me();
    let (name, back): (String, Peer) = py_call(&peer, "laws.who", (me,)).await?;
    assert_eq!((&*name, back.is_me()), ("worker0", true));
    cluster.shutdown().await
}

pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, CodecError> {
    let mut value = None;
    PickleCodec.decode(body, &mut |deserializer| {
        value = Some(erased_serde::deserialize(deserializer)?);
        Ok(())
    })?;
    value.ok_or_else(|| CodecError::new("nothing was read"))
}

/// NP-2
#[test]
fn np_2_a_number_of_nothing_is_an_error() {
    let pickles: [&[u8]; 5] = [
        b"\x80\x05cfarref._core\n_reference\nK\x00\x85R.",
        b"\x80\x05cfarref._core\n_peer\nK\x07\x85R.",
        b"\x80\x05cfarref._core\n_peer\nJ\xff\xff\xff\xff\x85R.",
        b"\x80\x05\x97.",
        b"\x80\x05cbuiltins\nbytes\n\x97\x85R.",
    ];
    for pickle in pickles {
        let wire = postcard::to_allocvec(&(
            false,
            Blob::from(pickle.to_vec()),
            Vec::<u8>::new(),
            Vec::<u32>::new(),
            Vec::<u8>::new(),
        ));
        let found = read::<PyValue>(&wire.unwrap()).unwrap_err().to_string();
        assert!(found.contains("did not come with the value"), "{found}");
    }
}

/// A value by itself, in the foreign form.
fn alone(pickle: &[u8]) -> Vec<u8> {
    let none = Vec::<u8>::new();
    let pickle = Blob::from(pickle.to_vec());
    postcard::to_allocvec(&(false, pickle, &none, Vec::<u32>::new(), &none)).unwrap()
}

#[test]
fn numbers_that_do_not_fit_are_refused_and_not_cut() {
    let long = |bytes: &[u8]| {
        let mut writer = Writer::new(5);
        writer.long(bytes);
        alone(&writer.finish())
    };
    let mut large = [0; 9];
    large[8] = 1;
    assert!(read::<i64>(&long(&large)).is_err());
    assert!(read::<PyValue>(&long(&large)).is_err());
    assert_eq!(read::<i128>(&long(&large)).ok(), Some(1 << 64));
    assert_eq!(read::<u128>(&long(&large)).ok(), Some(1 << 64));
    let mut larger = [0; 18];
    larger[17] = 1;
    assert!(read::<i128>(&long(&larger)).is_err() && read::<u128>(&long(&larger)).is_err());
}

#[test]
fn bytes_behind_a_value_are_refused() {
    let mut body = alone(b"\x80\x05K\x01.");
    assert_eq!(read::<i64>(&body).ok(), Some(1));
    body.push(0);
    assert!(read::<i64>(&body).is_err());
}

/// NP-1
#[test]
fn np_1_what_is_beside_a_pickle_is_paid_for_each_time_that_it_is_recalled() {
    /// Reads itself as whatever it is.
    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    enum Any {
        #[expect(dead_code, reason = "only read")]
        Memory(Blob),
        Other(IgnoredAny),
    }
    let often = |begin: &dyn Fn(&mut Writer), times: usize| {
        let mut writer = Writer::new(5);
        writer.empty_list().mark();
        begin(&mut writer);
        let number = writer.memoize();
        for _ in 1..times {
            writer.recall(number);
        }
        writer.appends();
        Blob::from(writer.finish())
    };
    let memory = |writer: &mut Writer| {
        writer.next_buffer();
    };
    let peer = |writer: &mut Writer| {
        writer.global("farref._core", "_peer");
        writer.int(0).tuple_of(1).reduce();
    };
    let text = "x".repeat(1 << 14);
    let of = |pickle: &Blob| {
        let buffers = [Memory::of(text.as_bytes())];
        let peers = [(0_u32, None::<u32>, &text)];
        postcard::to_allocvec(&(false, pickle, &buffers[..], [0_u8; 0], 0_u8, &peers[..])).unwrap()
    };
    let (memories, peers) = (of(&often(&memory, 100_000)), of(&often(&peer, 100_000)));
    for refused in [
        read::<Vec<Any>>(&memories).map(drop),
        read::<PyValue>(&memories).map(drop),
        read::<Vec<Any>>(&peers).map(drop),
    ] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("too large"), "{refused}");
    }
    // A few times is fine.
    let few = read::<Vec<Blob>>(&of(&often(&memory, 3))).unwrap();
    assert!(few.iter().all(|blob| blob.len() == 1 << 14) && few.len() == 3);
}

proptest! {
    /// NP-1: whatever comes is a value or an error.
    #[test]
    fn np_1_bytes_that_nobody_wrote_are_an_error_or_a_value(
        change in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>(), cuts: bool,
    ) {
        let value: BTreeMap<String, (i64, Vec<Option<f64>>)> =
            BTreeMap::from([("a".to_owned(), (1, vec![None, Some(0.5)])), ("b".to_owned(), (-7, vec![]))]);
        let mut body = PickleCodec.encode(&value).unwrap();
        let place = change.index(body.len());
        body[place] = byte;
        if cuts {
            body.truncate(cut.index(body.len()));
        }
        drop(read::<PyValue>(&body));
        drop(read::<BTreeMap<String, (i64, Vec<Option<f64>>)>>(&body));
    }
}

/// A worker that gets a body which is none says so, and lives on.
#[tokio::test]
async fn a_call_with_bytes_that_are_no_pickle_is_refused() -> Result<(), Error> {
    let (cluster, peer) = two().await?;
    /// Writes what is no Python.
    struct Depth(u32);
    impl Serialize for Depth {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match self.0 {
                0 => serializer.serialize_unit(),
                depth => serializer.serialize_some(&[Self(depth - 1)]),
            }
        }
    }
    let deep = py_call::<PyValue>(&peer, "laws.echo", (Depth(1000),)).await;
    assert!(matches!(deep, Err(Error::Codec { .. })), "{deep:?}");
    assert_eq!(py_call::<i64>(&peer, "laws.sum", (1, 2)).await?, 3);
    assert!(Worker::current().is_none());
    cluster.shutdown().await
}
