//! What can travel: every kind of value that serde has, references anywhere inside of them, and what
//! a peer can do with bytes that no correct program writes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::num::{NonZeroU8, Wrapping};
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Result;
use farref::testing::Cluster;
use farref::{Blob, Error, RRef, Worker};
use farref_testkit::{eventually, thorough};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Serialize, Serializer};

use crate::cluster::{finish, pair};

mod round_trips {
    //! Plain values.

    use super::*;

    #[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
    pub(crate) struct Unit;

    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
    pub(crate) struct Newtype(String);

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    pub(crate) struct Pair(i8, Option<char>);

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    pub(crate) enum Kind {
        Unit,
        Newtype(u128),
        Tuple(i16, String),
        Struct {
            left: Box<Self>,
            right: Vec<Self>,
        },
        #[serde(rename = "other name")]
        Renamed,
    }

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    pub(crate) struct Everything {
        unit: (),
        unit_struct: Unit,
        booleans: [bool; 2],
        signed: (i8, i16, i32, i64, i128, isize),
        unsigned: (u8, u16, u32, u64, u128, usize),
        floats: (f32, f64),
        characters: Vec<char>,
        text: String,
        borrowed: Cow<'static, str>,
        bytes: Vec<u8>,
        blob: Blob,
        options: [Option<u8>; 2],
        nested_options: [Option<Option<()>>; 3],
        array: [u16; 32],
        newtype: Newtype,
        pair: Pair,
        kinds: Vec<Kind>,
        empty: (Vec<u64>, String, BTreeMap<u8, u8>, Blob),
        map: BTreeMap<String, Vec<u8>>,
        keyed: HashMap<(i8, char), Kind>,
        set: BTreeSet<Newtype>,
        queue: VecDeque<Unit>,
        boxed: Box<[i32]>,
        results: Vec<Result<u8, String>>,
        duration: Duration,
        range: std::ops::Range<u32>,
        address: IpAddr,
        path: PathBuf,
        non_zero: Option<NonZeroU8>,
        wrapping: Wrapping<i32>,
        #[serde(skip)]
        skipped: u8,
        #[serde(default)]
        defaulted: u8,
    }

    fn everything() -> Everything {
        let nested = Kind::Struct {
            left: Box::new(Kind::Newtype(u128::MAX)),
            right: vec![Kind::Unit, Kind::Renamed, Kind::Tuple(-1, String::new())],
        };
        Everything {
            unit: (),
            unit_struct: Unit,
            booleans: [false, true],
            signed: (i8::MIN, i16::MIN, i32::MIN, i64::MIN, i128::MIN, isize::MIN),
            unsigned: (u8::MAX, u16::MAX, u32::MAX, u64::MAX, u128::MAX, usize::MAX),
            floats: (f32::NEG_INFINITY, f64::MIN_POSITIVE),
            characters: vec!['\0', 'a', 'ß', '中', '\u{10ffff}'],
            text: "far\0 reference \u{1f980}".to_owned(),
            borrowed: Cow::Borrowed("borrowed"),
            bytes: (0..=255).collect(),
            blob: vec![9; 5000].into(),
            options: [None, Some(0)],
            nested_options: [None, Some(None), Some(Some(()))],
            array: std::array::from_fn(|i| i as u16),
            newtype: Newtype("n".to_owned()),
            pair: Pair(-128, Some('é')),
            kinds: vec![nested.clone(), Kind::Unit, nested.clone()],
            empty: Default::default(),
            map: BTreeMap::from([(String::new(), vec![]), ("k".to_owned(), vec![1, 2])]),
            keyed: HashMap::from([((-1, 'x'), nested), ((1, 'y'), Kind::Unit)]),
            set: BTreeSet::from([Newtype("b".to_owned()), Newtype("a".to_owned())]),
            queue: VecDeque::from([Unit; 3]),
            boxed: Box::new([1, -1]),
            results: vec![Ok(1), Err("no".to_owned())],
            duration: Duration::new(u64::MAX, 999_999_999),
            range: 3..7,
            address: IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]),
            path: PathBuf::from("/a/b c"),
            non_zero: NonZeroU8::new(255),
            wrapping: Wrapping(-1),
            skipped: 0,
            defaulted: 4,
        }
    }

    #[farref::remote]
    async fn echo(value: Everything) -> Everything {
        value
    }

    #[farref::remote]
    async fn echo_many(values: Vec<(Option<Everything>, Kind)>) -> Vec<(Option<Everything>, Kind)> {
        values
    }

    #[farref::remote]
    fn nothing() {}

    #[farref::remote]
    async fn bits(value: f64) -> (f64, u64) {
        (value, value.to_bits())
    }

    #[farref::remote]
    async fn many(
        a: u8,
        b: (),
        c: Option<()>,
        d: [u8; 0],
        e: (),
        f: Unit,
    ) -> (u8, (), Option<()>, [u8; 0], (), Unit) {
        (a, b, c, d, e, f)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_kind_of_value_arrives_as_it_was_sent() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let value = everything();
        assert_eq!(echo::on(&peer, value.clone()).await?, value);
        assert_eq!(
            echo::on(&cluster.worker(0).me(), value.clone()).await?,
            value
        );

        let left_there = echo::on(&peer, value.clone()).remote();
        assert_eq!(left_there.to_here().await?, value);
        drop(left_there);
        let here = cluster.worker(0).rref(value.clone())?;
        assert_eq!(here.to_here().await?, value);
        drop(here);

        let values: Vec<_> = (0..50)
            .map(|n| ((n % 2 == 0).then(|| value.clone()), Kind::Newtype(n)))
            .collect();
        assert_eq!(echo_many::on(&peer, values.clone()).await?, values);

        nothing::on(&peer).await?;
        let emptiness = many::on(&peer, 1, (), Some(()), [], (), Unit).await?;
        assert_eq!(emptiness, (1, (), Some(()), [], (), Unit));
        for special in [
            f64::NAN,
            -0.0,
            f64::INFINITY,
            f64::from_bits(0x7ff8_dead_beef_0001),
        ] {
            let (back, there) = bits::on(&peer, special).await?;
            assert_eq!(
                (back.to_bits(), there),
                (special.to_bits(), special.to_bits())
            );
        }
        finish(cluster).await
    }
}

mod references {
    //! References inside of values.

    use super::*;

    static SHELVES: AtomicI64 = AtomicI64::new(0);

    #[derive(Clone, Debug, Serialize, Deserialize)]
    enum Choice {
        Nothing,
        One(RRef<u64>),
        Two {
            number: RRef<u64>,
            text: RRef<String>,
        },
    }

    type Labelled = (u8, RRef<String>);

    /// References wherever they can be.
    #[derive(Clone, Debug, Serialize, Deserialize)]
    struct Carrier {
        one: RRef<u64>,
        many: Vec<RRef<String>>,
        named: BTreeMap<String, RRef<u64>>,
        maybe: (Option<RRef<u64>>, Option<RRef<u64>>),
        choices: [Choice; 3],
        boxed: Box<Option<Vec<Labelled>>>,
        beside: Blob,
    }

    impl Carrier {
        fn new(numbers: &[RRef<u64>; 5], texts: &[RRef<String>; 4]) -> Self {
            let [a, b, c, d, e] = numbers.clone();
            let [k, l, m, n] = texts.clone();
            Self {
                one: a,
                many: vec![k, l],
                named: BTreeMap::from([("b".to_owned(), b)]),
                maybe: (None, Some(c)),
                choices: [
                    Choice::Nothing,
                    Choice::One(d),
                    Choice::Two { number: e, text: m },
                ],
                boxed: Box::new(Some(vec![(1, n)])),
                beside: vec![1; 10_000].into(),
            }
        }

        /// Everything behind it, in the order above.
        async fn read(&self) -> farref::Result<(Vec<u64>, Vec<String>)> {
            let mut numbers = vec![self.one.to_here().await?];
            let mut texts = Vec::new();
            for text in &self.many {
                texts.push(text.to_here().await?);
            }
            for number in self
                .named
                .values()
                .chain(&self.maybe.0)
                .chain(&self.maybe.1)
            {
                numbers.push(number.to_here().await?);
            }
            for choice in &self.choices {
                match choice {
                    Choice::Nothing => {}
                    Choice::One(number) => numbers.push(number.to_here().await?),
                    Choice::Two { number, text } => {
                        numbers.push(number.to_here().await?);
                        texts.push(text.to_here().await?);
                    }
                }
            }
            for (_, text) in self.boxed.iter().flatten() {
                texts.push(text.to_here().await?);
            }
            Ok((numbers, texts))
        }
    }

    #[farref::remote]
    async fn read(carrier: Carrier) -> farref::Result<(Vec<u64>, Vec<String>)> {
        carrier.read().await
    }

    #[farref::remote]
    async fn give_back(carrier: Carrier) -> Carrier {
        carrier
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn references_travel_anywhere_inside_a_value() -> Result<()> {
        let cluster = Cluster::start(3).await?;
        let me = cluster.worker(0);
        let (there, elsewhere) = (me.peer("worker1")?, me.peer("worker2")?);
        let expected = (
            (0..5).collect::<Vec<u64>>(),
            ["k", "l", "m", "n"].map(str::to_owned).to_vec(),
        );

        // Some of them of this worker, some of another.
        let number = |n| me.rref::<u64>(n);
        let numbers = [number(0)?, number(1)?, number(2)?, number(3)?, number(4)?];
        let text = |text: &str| say::on(&there, text.to_owned()).remote();
        let texts = [text("k"), text("l"), text("m"), text("n")];
        let carrier = Carrier::new(&numbers, &texts);
        drop((numbers, texts));

        for peer in [&there, &elsewhere, &me.me()] {
            assert_eq!(read::on(peer, carrier.clone()).await?, expected);
            let back = give_back::on(peer, carrier.clone()).await?;
            assert_eq!(back.read().await?, expected);
            assert_eq!(back.beside, carrier.beside);

            // A value full of references, left there; fetched, it still has them.
            let left_there = give_back::on(peer, carrier.clone()).remote();
            assert_eq!(left_there.to_here().await?.read().await?, expected);
            assert_eq!(read_behind::on(&there, left_there.clone()).await?, expected);
        }
        drop(carrier);
        finish(cluster).await
    }

    #[farref::remote]
    async fn say(text: String) -> String {
        text
    }

    #[farref::remote]
    async fn read_behind(carrier: RRef<Carrier>) -> farref::Result<(Vec<u64>, Vec<String>)> {
        carrier.to_here().await?.read().await
    }

    #[farref::remote]
    async fn same(a: RRef<u64>, more: Vec<RRef<u64>>) -> farref::Result<(bool, Vec<u64>)> {
        let mut ids = vec![a.id()?];
        let mut values = vec![a.to_here().await?];
        drop(a);
        for rref in more {
            ids.push(rref.id()?);
            values.push(rref.to_here().await?);
        }
        Ok((ids.windows(2).all(|pair| pair[0] == pair[1]), values))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_reference_may_be_in_a_value_many_times() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let me = cluster.worker(0);
        for owner in [me.me(), peer.clone()] {
            let number = number::on(&owner, 7).remote();
            let more = vec![number.clone(); 1000];
            let (equal, values) = same::on(&peer, number.clone(), more).await?;
            assert!(equal && values == [7; 1001]);
            drop(number);
        }
        finish(cluster).await
    }

    #[farref::remote]
    async fn number(n: u64) -> u64 {
        n
    }

    /// A value that holds a reference to the next one.
    pub(crate) struct Shelf {
        next: Option<RRef<Self>>,
        number: u64,
    }

    #[farref::remote]
    impl Shelf {
        pub(crate) fn new(number: u64, next: Option<RRef<Self>>) -> Self {
            SHELVES.fetch_add(1, Ordering::Relaxed);
            Self { next, number }
        }

        pub(crate) async fn next(&self) -> Option<RRef<Self>> {
            self.next.clone()
        }

        pub(crate) async fn number(&self) -> u64 {
            self.number
        }
    }

    impl Drop for Shelf {
        fn drop(&mut self) {
            SHELVES.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A peer decides how long such a chain is. Freeing it must not need stack for all of it.
    #[tokio::test(flavor = "multi_thread")]
    async fn chains_of_values_that_hold_each_other_are_freed() -> Result<()> {
        // A recursion that takes only 200 bytes for each value would leave the stack of a thread with 2 MiB.
        let length = if thorough() { 100_000 } else { 12_000 };
        let (cluster, peer) = pair().await?;
        let me = cluster.worker(0).me();

        // All on one worker, the other one; all on this one.
        for owner in [&peer, &me] {
            let mut first = Shelf::new_on(owner, 0, None).remote();
            for number in 1..length {
                first = Shelf::new_on(owner, number, Some(first)).remote();
            }
            assert_eq!(first.number().timeout(None).await?, length - 1);
            let second = first.next().await?.map(|second| (second.number(), second));
            let (number, second) = second.expect("the first has a next");
            assert_eq!(number.await?, length - 2);
            drop((first, second));
            eventually("all are freed", || SHELVES.load(Ordering::Relaxed) == 0).await?;
        }

        // Here and there in turns: each one is freed by a message.
        let mut first = Shelf::new_on(&me, 0, None).remote();
        for number in 1..2_000 {
            let owner = if number % 2 == 0 { &me } else { &peer };
            first = Shelf::new_on(owner, number, Some(first)).remote();
        }
        assert_eq!(first.number().await?, 1_999);
        drop(first);
        eventually("all are freed", || SHELVES.load(Ordering::Relaxed) == 0).await?;
        finish(cluster).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reference_of_another_worker_of_this_process_is_refused() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let theirs = cluster.worker(1).rref(1_u64)?;
        for sent in [
            same::on(&peer, theirs.clone(), vec![]).await.map(|_| ()),
            same::on(&peer, cluster.worker(0).rref(2)?, vec![theirs.clone()])
                .await
                .map(|_| ()),
        ] {
            let Err(Error::ForeignReference {
                held_by, sent_by, ..
            }) = sent
            else {
                panic!("expected a typed error, got {sent:?}");
            };
            assert_eq!((&*held_by, &*sent_by), ("worker1", "worker0"));
        }
        let left_there = same::on(&peer, theirs.clone(), vec![]).remote();
        let used = left_there.to_here().await;
        assert!(
            matches!(used, Err(Error::ForeignReference { .. })),
            "{used:?}"
        );
        // Such a reference leads nowhere; to hand it on is an error that says why.
        let handed_on = read_pair::on(&peer, left_there).await;
        let Err(error @ Error::Codec { .. }) = handed_on else {
            panic!("expected a typed error, got {handed_on:?}");
        };
        assert!(error.to_string().contains("worker1"), "{error}");
        drop(theirs);
        finish(cluster).await
    }

    #[farref::remote]
    async fn read_pair(pair: RRef<(bool, Vec<u64>)>) -> farref::Result<(bool, Vec<u64>)> {
        pair.to_here().await
    }

    #[farref::remote]
    async fn wrong_type() -> farref::Result<RRef<u64>> {
        let me = Worker::current().ok_or(Error::Misuse(farref::Misuse::NoWorker))?;
        me.rref(1)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_reference_outside_of_a_call_cannot_be_written_or_read() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let number = cluster.worker(0).rref(1_u64)?;

        let error = serde_json::to_string(&vec![number.clone()]).unwrap_err();
        let says_why = "a reference can only be sent inside a call or an answer";
        assert!(error.to_string().contains(says_why), "{error}");
        let error = serde_json::from_str::<RRef<u64>>("0").unwrap_err();
        let says_why = "a reference can only be read out of a call or an answer";
        assert!(error.to_string().contains(says_why), "{error}");
        // Postcard does not keep the words of an error.
        assert!(postcard::to_allocvec(&number).is_err());
        assert!(postcard::from_bytes::<RRef<u64>>(&[0]).is_err());

        // In a call all is well, before and after.
        assert_eq!(same::on(&peer, number, vec![]).await?, (true, vec![1]));
        assert_eq!(wrong_type::on(&peer).await?.to_here().await?, 1);
        finish(cluster).await
    }
}

mod hostile {
    //! Values that no correct program writes.

    use super::*;

    /// As deep as whoever writes the bytes wants.
    #[derive(Debug, Serialize, Deserialize)]
    enum Nested {
        Leaf,
        Deeper(Box<Self>),
    }

    /// Says that it is a [`Nested`] of some depth; of one that is too deep without being one, so that the
    /// sender survives.
    #[derive(Debug)]
    struct Deep {
        claimed: usize,
        found: usize,
    }

    impl Serialize for Deep {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            if self.claimed < 128 {
                let inside = |inner, _| Nested::Deeper(Box::new(inner));
                return (0..self.claimed)
                    .fold(Nested::Leaf, inside)
                    .serialize(serializer);
            }
            let mut bytes = serializer.serialize_tuple(self.claimed + 1)?;
            for _ in 0..self.claimed {
                bytes.serialize_element(&1_u8)?;
            }
            bytes.serialize_element(&0_u8)?;
            bytes.end()
        }
    }

    impl<'de> Deserialize<'de> for Deep {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let mut nested = Nested::deserialize(deserializer)?;
            let mut found = 0;
            while let Nested::Deeper(inner) = nested {
                nested = *inner;
                found += 1;
            }
            Ok(Self { claimed: 0, found })
        }
    }

    #[farref::remote]
    async fn depth(deep: Deep) -> usize {
        deep.found
    }

    #[farref::remote]
    async fn deep(claimed: usize) -> Deep {
        Deep { claimed, found: 0 }
    }

    /// With a million levels the stack would overflow, which no process survives.
    #[tokio::test(flavor = "multi_thread")]
    async fn deeply_nested_values_are_refused_before_the_stack_overflows() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let deepest = 127;
        let argument = |claimed| depth::on(&peer, Deep { claimed, found: 0 });
        assert_eq!(argument(deepest).await?, deepest);
        assert_eq!(deep::on(&peer, deepest).await?.found, deepest);
        for claimed in [deepest + 1, 10_000, 1_000_000] {
            let error = argument(claimed).await.unwrap_err();
            let Error::Codec { what, reason, .. } = &error else {
                panic!("expected a typed error, got {error:?}");
            };
            assert_eq!(*what, "the arguments");
            assert!(reason.to_string().contains("128 levels"), "{reason}");

            let error = deep::on(&peer, claimed).await.unwrap_err();
            assert!(matches!(&error, Error::Codec { what, .. } if *what == "the result"));
            let left_there = deep::on(&peer, claimed).remote();
            let error = left_there.to_here().await.unwrap_err();
            assert!(error.to_string().contains("128 levels"), "{error}");
        }
        // Everybody lives on.
        assert_eq!(argument(3).await?, 3);
        finish(cluster).await
    }

    /// Writes other bytes than it reads.
    #[derive(Debug)]
    struct Liar(Vec<u8>);

    impl Serialize for Liar {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut bytes = serializer.serialize_tuple(self.0.len())?;
            for byte in &self.0 {
                bytes.serialize_element(byte)?;
            }
            bytes.end()
        }
    }

    impl<'de> Deserialize<'de> for Liar {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            type Inside = (Vec<Vec<Blob>>, Option<RRef<u64>>, String, Vec<char>);
            Inside::deserialize(deserializer).map(|_| Self(Vec::new()))
        }
    }

    #[farref::remote]
    async fn believe(liar: Liar) {
        drop(liar);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn bytes_that_make_no_sense_are_a_typed_error() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let huge = [0xff, 0xff, 0xff, 0xff, 0x0f];
        let lies: [&[u8]; 8] = [
            &[],
            &huge,                        // four billion lists
            &[1, 0xff, 0xff, 0xff, 0x7f], // a list of very many blobs
            &[1, 1, 1, 200],              // a blob that did not come along
            &[1, 1, 0, 0xff, 0x7f],       // a blob longer than the value
            &[0, 1, 7, 0, 0],             // a reference that did not come along
            &[0, 0, 2, 0xc3, 0x28, 0],    // no UTF-8
            &[0, 0, 0, 0, 0, 0, 0],       // too much
        ];
        for lie in lies {
            let error = believe::on(&peer, Liar(lie.to_vec())).await.unwrap_err();
            assert!(matches!(error, Error::Codec { .. }), "{lie:?}: {error}");
        }
        believe::on(&peer, Liar(vec![0, 0, 0, 0])).await?;
        finish(cluster).await
    }
}
