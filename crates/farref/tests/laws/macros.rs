//! `#[farref::remote]`: what it generates, in use. What it refuses is in `mistakes`.

use std::time::{Duration, Instant};

use anyhow::Result;
use farref::testing::Cluster;
use farref::{Error, Peer, RRef};

#[farref::remote]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[farref::remote]
fn shout(mut text: String) -> String {
    text.push('!');
    text
}

#[farref::remote]
fn nothing() {}

/// Its arguments have the names that generated code would use, or none.
#[farref::remote]
fn awkward(to: i64, awkward: i64, (x, y): (i64, i64), _: i64, r#type: Option<i64>) -> i64 {
    to + awkward + x * y + r#type.unwrap_or_default()
}

#[farref::remote]
fn r#match(text: String) -> usize {
    text.len()
}

#[farref::remote]
fn parse(text: String) -> Result<i64, std::num::ParseIntError> {
    text.parse()
}

#[farref::remote]
async fn explain(what: String) -> Result<()> {
    use anyhow::Context as _;
    Err(anyhow::anyhow!("the reason")).with_context(|| format!("no {what}"))
}

#[farref::remote]
fn refuse() -> Result<(), &'static str> {
    Err("no")
}

/// Errors that borrow, where the attribute does not see it.
mod borrowing {
    use std::borrow::Cow;

    pub(super) type Text = &'static str;
    type Result<T> = std::result::Result<T, &'static str>;

    #[derive(Debug, serde::Serialize, serde::Deserialize)]
    pub(super) struct Said<'a>(&'a str);

    impl std::fmt::Display for Said<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Said<'_> {}

    #[farref::remote]
    pub(super) fn by_alias() -> Result<u32> {
        Err("no")
    }

    #[farref::remote]
    pub(super) fn by_name() -> std::result::Result<u32, Text> {
        Err("no")
    }

    #[farref::remote]
    pub(super) fn in_a_type() -> std::result::Result<u32, Said<'static>> {
        Err(Said("no"))
    }

    #[farref::remote]
    pub(super) async fn without_a_name()
    -> std::result::Result<u32, impl std::error::Error + Send + Sync> {
        Err(std::fmt::Error)
    }

    /// Has a text.
    pub(super) struct Sign(pub(super) String);

    #[farref::remote]
    impl Sign {
        pub(super) fn new(text: String) -> Self {
            Self(text)
        }

        pub(super) fn refuse(&self) -> std::result::Result<u32, &str> {
            Err(&self.0)
        }

        pub(super) fn refuse_again(&self) -> std::result::Result<u32, Cow<'_, str>> {
            Err(Cow::Borrowed(&self.0))
        }
    }
}

/// What is not sent as what it is comes as its text.
#[tokio::test]
async fn errors_that_borrow_come_as_their_text() -> Result<()> {
    use self::borrowing::SignRRef as _;

    let (cluster, peer) = pair().await?;
    let sign = borrowing::Sign::new_on(&peer, "no".to_owned()).remote();
    // The call has nothing of the reference.
    let refused = [sign.refuse().start(), sign.refuse_again().start()];
    drop(sign);
    let [refused, again] = refused;
    let refusals = [
        refused.await,
        again.await,
        borrowing::by_alias::on(&peer).await,
        borrowing::by_name::on(&peer).await,
        borrowing::in_a_type::on(&peer).await,
    ];
    for refusal in refusals {
        match refusal {
            Err(Error::Remote(error)) => assert_eq!(error.message(), "no"),
            other => anyhow::bail!("{other:?}"),
        }
    }
    let nameless = borrowing::without_a_name::on(&peer).await;
    assert!(matches!(nameless, Err(Error::Remote(_))));
    Ok(cluster.shutdown().await?)
}

#[farref::remote(task)]
fn thread_as_task() -> Option<String> {
    thread()
}

#[farref::remote]
fn thread_by_default() -> Option<String> {
    thread()
}

fn thread() -> Option<String> {
    std::thread::current().name().map(str::to_owned)
}

#[farref::remote]
async fn quick(n: u32) -> u32 {
    n + 1
}

#[farref::remote(name = "macros/named")]
fn named() -> Result<(), String> {
    Err("named".to_owned())
}

#[farref::remote(timeout = "50ms")]
async fn hang() {
    std::future::pending().await
}

/// Cannot be sent: it stays where it was made.
struct Table {
    rows: Vec<f32>,
    calls: u32,
}

#[farref::remote]
impl Table {
    const DEFAULT: usize = 2;

    pub(crate) fn new(n: usize) -> Self {
        Self {
            rows: vec![0.0; n],
            calls: 0,
        }
    }

    pub(crate) async fn checked(n: usize) -> Result<Self, String> {
        if n == 0 {
            return Err("a table has rows".to_owned());
        }
        Ok(Self::new(n))
    }

    pub(crate) fn get(&self, i: usize) -> Option<f32> {
        self.rows.get(i).copied()
    }

    pub(crate) async fn push(&mut self, i: usize, gradient: f32) {
        self.calls += 1;
        self.rows[i] += gradient;
    }

    pub(crate) fn first(&self) -> [f32; Self::DEFAULT] {
        [self.rows[0], self.rows[1]]
    }

    pub(crate) fn row(&self, i: usize) -> Result<f32, String> {
        self.get(i).ok_or_else(|| format!("no row {i}"))
    }

    /// A new value made from a far one, and left next to it.
    pub(crate) fn doubled(&self) -> Self {
        Self {
            rows: self.rows.iter().map(|row| row * 2.0).collect(),
            calls: 0,
        }
    }

    #[remote]
    fn calls(&self) -> u32 {
        self.calls
    }

    #[remote(timeout = "50ms")]
    pub(crate) async fn hang(&self) {
        std::future::pending().await
    }

    #[remote(skip)]
    pub(crate) fn rows(&self) -> &[f32] {
        &self.rows
    }
}

/// A second block of the same type.
#[farref::remote(trait = TableSize, name = "macros/table")]
impl Table {
    pub(crate) fn size(&self) -> usize {
        self.rows().len()
    }

    #[remote(name = "macros/clear")]
    pub(crate) fn clear(&mut self) -> Result<(), String> {
        Err(format!("{} rows are gone", self.rows.drain(..).len()))
    }

    pub(crate) fn fail(&self) -> Result<(), String> {
        Err("failed".to_owned())
    }
}

mod elsewhere {
    #[farref::remote]
    impl Counter {
        pub(crate) fn new() -> Self {
            Self(0)
        }

        pub(crate) fn add(&mut self, n: u64) -> u64 {
            self.0 += n;
            self.0
        }
    }

    pub(crate) struct Counter(u64);
}

/// A group of two, and the other one's address.
async fn pair() -> Result<(Cluster, Peer)> {
    let cluster = Cluster::start(2).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    Ok((cluster, peer))
}

/// The messages of an error that the function itself returned, and the name it was called by.
#[track_caller]
fn returned<T: std::fmt::Debug>(result: farref::Result<T>) -> (Vec<String>, String) {
    match result {
        Err(Error::Remote(error)) if !error.panicked => {
            let name = error.function.as_str().to_owned();
            (error.messages, name)
        }
        other => panic!("expected an error of the function, got {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_function_can_be_called_here_and_there() -> Result<()> {
    let (cluster, peer) = pair().await?;

    assert_eq!(add(1, 2).await, 3);
    assert_eq!(add::on(&peer, 1, 2).await?, 3);
    assert_eq!(shout("here".to_owned()), "here!");
    assert_eq!(shout::on(&peer, "there".to_owned()).await?, "there!");
    nothing();
    nothing::on(&peer).await?;

    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_patterns_of_arguments_are_free() -> Result<()> {
    let (cluster, peer) = pair().await?;

    assert_eq!(awkward::on(&peer, 1, 2, (3, 4), 100, Some(5)).await?, 20);
    assert_eq!(r#match::on(&peer, "four".to_owned()).await?, 4);

    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_good_part_of_a_result_comes_back_and_the_error_as_text() -> Result<()> {
    let (cluster, peer) = pair().await?;

    assert_eq!(parse::on(&peer, "42".to_owned()).await?, 42);
    let (messages, function) = returned(parse::on(&peer, "x".to_owned()).await);
    assert_eq!(messages, ["invalid digit found in string"]);
    assert_eq!(function, "laws::macros::parse");
    let (messages, _) = returned(explain::on(&peer, "luck".to_owned()).await);
    assert_eq!(messages, ["no luck", "the reason"]);
    let (messages, _) = returned(refuse::on(&peer).await);
    assert_eq!(messages, ["no"]);

    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_options_of_a_function_take_effect() -> Result<()> {
    let (cluster, peer) = pair().await?;

    assert_ne!(
        thread_as_task::on(&peer).await?,
        thread_by_default::on(&peer).await?
    );
    assert_eq!(quick::on(&peer, 1).await?, 2);
    let (_, function) = returned(named::on(&peer).await);
    assert_eq!(function, "macros/named");

    let began = Instant::now();
    let Err(Error::Timeout { limit, .. }) = hang::on(&peer).await else {
        panic!("a function that never ends was not timed out");
    };
    assert_eq!(limit, Duration::from_millis(50));
    assert!(began.elapsed() >= limit);

    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_are_called_where_the_value_is() -> Result<()> {
    let (cluster, peer) = pair().await?;

    let table: RRef<Table> = Table::new_on(&peer, 8).remote();
    table.push(3, 0.5).await?;
    table.push(3, 0.25).await?;
    assert_eq!(table.get(3).await?, Some(0.75));
    assert_eq!(table.get(8).await?, None);
    assert_eq!(table.first().await?, [0.0, 0.0]);
    assert_eq!(
        table.calls().await?,
        2,
        "`#[remote]` makes a private method remote"
    );
    assert_eq!(
        table.size().await?,
        8,
        "a second block has a trait of its own"
    );
    let (messages, function) = returned(table.row(9).await);
    assert_eq!(
        (&messages[..], &*function),
        (&["no row 9".to_owned()][..], "laws::macros::Table::row")
    );

    let doubled: RRef<Table> = table.doubled().remote();
    assert_eq!(doubled.get(3).await?, Some(1.5));

    drop((table, doubled));
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_constructor_that_fails_fails_the_first_use() -> Result<()> {
    let (cluster, peer) = pair().await?;

    let table = Table::checked_on(&peer, 2).remote();
    assert_eq!(table.size().await?, 2);
    let none = Table::checked_on(&peer, 0).remote();
    let (messages, _) = returned(none.size().await);
    assert!(messages[0].ends_with("a table has rows"), "{messages:?}");

    drop((table, none));
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_can_be_called_without_importing_their_trait() -> Result<()> {
    let (cluster, peer) = pair().await?;

    let counter = elsewhere::Counter::new_on(&peer).remote();
    assert_eq!(elsewhere::Counter::add_on(&counter, 2).await?, 2);
    use elsewhere::CounterRRef as _;
    assert_eq!(counter.add(3).await?, 5);

    drop(counter);
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_options_of_methods_and_blocks_take_effect() -> Result<()> {
    let (cluster, peer) = pair().await?;

    let table = Table::new_on(&peer, 1).remote();
    let (_, function) = returned(table.fail().await);
    assert_eq!(function, "macros/table::fail");
    let (messages, function) = returned(table.clear().await);
    assert_eq!(
        (&messages[..], &*function),
        (&["1 rows are gone".to_owned()][..], "macros/clear")
    );
    let Err(Error::Timeout { limit, .. }) = table.hang().await else {
        panic!("a method that never ends was not timed out");
    };
    assert_eq!(limit, Duration::from_millis(50));

    drop(table);
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_of_every_visibility_can_be_called_from_where_they_are_seen() -> Result<()> {
    let (cluster, peer) = pair().await?;

    use seen::{DoorRRef as _, DoorRRefSuper as _};
    let door = seen::Door::new_on(&peer).remote();
    assert!(!door.is_open().await?);
    door.unlock().await?;
    assert!(seen::force(&door).await?);

    drop(door);
    Ok(cluster.shutdown().await?)
}

mod seen {
    use farref::RRef;

    pub(crate) struct Door(bool);

    #[farref::remote]
    impl Door {
        pub(crate) fn new() -> Self {
            Self(false)
        }

        pub(crate) fn is_open(&self) -> bool {
            self.0
        }

        #[expect(clippy::needless_pass_by_ref_mut, reason = "only who sees it matters")]
        pub(super) fn unlock(&mut self) {}

        #[remote]
        fn open(&mut self) {
            self.0 = true;
        }
    }

    pub(crate) async fn force(door: &RRef<Door>) -> farref::Result<bool> {
        door.open().await?;
        door.is_open().await
    }
}

/// A call is a future: what takes futures takes calls, and nothing is sent before it is polled.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_can_be_awaited_beside_others() -> Result<()> {
    let (cluster, peer) = pair().await?;

    let (one, two) = tokio::join!(add::on(&peer, 1, 2), add::on(&peer, 3, 4));
    assert_eq!((one?, two?), (3, 7));
    let mut call = add::on(&peer, 5, 6);
    assert_eq!((&mut call).await?, 11);
    assert!(matches!(call.await, Err(Error::Misuse(_))), "twice");

    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_inside_of_functions_can_be_remote() -> Result<()> {
    #[farref::remote]
    async fn inside(n: u8) -> u8 {
        n + 1
    }

    struct Inside(u8);

    #[farref::remote]
    impl Inside {
        pub(crate) fn new(n: u8) -> Self {
            Self(n)
        }

        pub(crate) fn value(&self) -> u8 {
            self.0
        }
    }

    let (cluster, peer) = pair().await?;

    assert_eq!(inside::on(&peer, 1).await?, 2);
    let value = Inside::new_on(&peer, 7).remote();
    assert_eq!(value.value().await?, 7);

    drop(value);
    Ok(cluster.shutdown().await?)
}
