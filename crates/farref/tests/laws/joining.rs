//! F4: who cannot join is told why, by the side that knows, at once and not when its time is up.
//!
//! Every worker here has an hour to join. A test that ends at all shows that it was not waited for.

use std::time::Duration;

use farref::{ConfigError, Error, RendezvousError, Store, TcpStoreClient, Worker, WorkerBuilder};
use farref_testkit::TEST_TIMEOUT;
use tokio::task::JoinHandle;

/// What nobody here is to wait for.
const LIMIT: Duration = Duration::from_secs(3600);

/// A file in which workers meet.
struct Place(std::path::PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let file = format!("farref-joining-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(file);
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn worker(&self, name: &str) -> WorkerBuilder {
        Worker::builder(name)
            .rendezvous(&format!("file://{}", self.0.display()))
            .join_timeout(LIMIT)
    }

    /// A worker of that rank that is not to be let in, and waits for the others by now: one that comes
    /// after they were told waits for their next attempt.
    async fn waiting(&self, builder: WorkerBuilder, rank: u32) -> JoinHandle<Error> {
        let task = tokio::spawn(refused(builder));
        let card = format!("latest/{rank}").into_bytes();
        let is_there = || {
            let bytes = std::fs::read(&self.0).unwrap_or_default();
            bytes.windows(card.len()).any(|part| part == card)
        };
        while !is_there() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        task
    }

    fn founder(&self, name: &str, rank: u32, world_size: u32) -> WorkerBuilder {
        self.worker(name).rank(rank).world_size(world_size)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Beside it is the file of its lock.
        for path in [self.0.clone(), self.0.with_extension("lock")] {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[farref::remote]
async fn whoami() -> String {
    Worker::current().map_or_else(String::new, |me| me.name().to_owned())
}

/// The error of a worker that is not to be let in.
async fn refused(builder: WorkerBuilder) -> Error {
    tokio::time::timeout(TEST_TIMEOUT, builder.join())
        .await
        .expect("told at once")
        .map(|worker| worker.name().to_owned())
        .expect_err("not let in")
}

async fn all_refused(builders: Vec<WorkerBuilder>) -> Vec<Error> {
    let tasks: Vec<_> = builders
        .into_iter()
        .map(|builder| tokio::spawn(refused(builder)))
        .collect();
    let mut errors = Vec::new();
    for task in tasks {
        errors.push(task.await.expect("told at once"));
    }
    errors
}

/// Whether it is an error of joining of that kind, and its text has these words.
fn assert_told(error: &Error, kind: impl FnOnce(&RendezvousError) -> bool, words: &[&str]) {
    let Error::Rendezvous(cause) = error else {
        panic!("{error:?}");
    };
    assert!(kind(cause), "{error:?}");
    let text = error.to_string();
    for part in words {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
}

/// F4: of two workers with one name in a growing group the second is told, and the first goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_a_live_name_used_again_is_told_at_once() -> anyhow::Result<()> {
    let place = Place::new("name");
    let a = place.worker("a").join().await?;
    let is_taken = |error: &RendezvousError| matches!(error, RendezvousError::NameTaken { .. });
    let error = refused(place.worker("a")).await;
    assert_told(&error, is_taken, &["\"a\" is running", "end it first"]);

    let b = place.worker("b").join().await?;
    let error = refused(place.worker("b")).await;
    assert_told(&error, is_taken, &["\"b\" is running", "another name"]);
    assert_eq!(whoami::on(&a.peer("b")?).await?, "b");

    // Others find the group as before.
    let c = place.worker("c").join().await?;
    for worker in [c, b, a] {
        worker.leave().await?;
    }
    Ok(())
}

/// F3: who crashed comes back under its name, though nobody has noticed that it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f3_the_name_of_a_worker_that_crashed_is_free() -> anyhow::Result<()> {
    let place = Place::new("crashed");
    let a = place.worker("a").join().await?;
    for _ in 0..3 {
        let b = place.worker("b").join().await?;
        b.crash().await;
    }
    let b = place.worker("b").join().await?;
    assert_eq!(whoami::on(&b.peer("a")?).await?, "a");
    b.leave().await?;
    // Nor is the name of one that has left in good order.
    let b = place.worker("b").join().await?;
    b.leave().await?;
    a.leave().await?;
    Ok(())
}

/// F4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_a_wrong_token_is_told_at_once() -> anyhow::Result<()> {
    let place = Place::new("token");
    let a = place.worker("a").token("the group's").join().await?;
    let b = place.worker("b").token("the group's").join().await?;
    for stranger in [
        place.worker("stranger").token("guessed"),
        place.worker("stranger"),
        place.worker("b").token("guessed"),
    ] {
        let error = refused(stranger).await;
        let is_token =
            |error: &RendezvousError| matches!(error, RendezvousError::WrongToken { .. });
        assert_told(&error, is_token, &["another token", "FARREF_TOKEN"]);
    }
    assert_eq!(whoami::on(&a.peer("b")?).await?, "b");
    let c = place.worker("stranger").token("the group's").join().await?;
    for worker in [c, b, a] {
        worker.leave().await?;
    }
    Ok(())
}

/// F4: both, and whoever waits for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_two_founders_with_one_name_are_told_at_once() -> anyhow::Result<()> {
    let place = Place::new("founders");
    let other = place.waiting(place.founder("other", 1, 4), 1).await;
    let same = vec![place.founder("same", 0, 4), place.founder("same", 2, 4)];
    let mut told = all_refused(same).await;
    told.push(other.await?);
    for error in told {
        let is_name =
            |error: &RendezvousError| matches!(error, RendezvousError::DuplicateName { .. });
        assert_told(&error, is_name, &["\"same\"", "worker 0", "worker 2"]);
    }
    Ok(())
}

/// F4
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_one_founder_started_twice_is_told_at_once() -> anyhow::Result<()> {
    let place = Place::new("twice");
    let zero = place.waiting(place.founder("zero", 0, 3), 0).await;
    let twice = vec![place.founder("one", 1, 3), place.founder("one", 1, 3)];
    let mut told = all_refused(twice).await;
    told.push(zero.await?);
    for error in told {
        let is_taken = |error: &RendezvousError| matches!(error, RendezvousError::NameTaken { .. });
        assert_told(&error, is_taken, &["\"one\" is running"]);
    }
    Ok(())
}

/// F4: all of them, whichever has the right one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_founders_with_different_tokens_are_told_at_once() -> anyhow::Result<()> {
    let place = Place::new("tokens");
    let founders = vec![
        place.founder("zero", 0, 3).token("right"),
        place.founder("one", 1, 3).token("wrong"),
        place.founder("two", 2, 3).token("right"),
    ];
    for error in all_refused(founders).await {
        let is_tokens =
            |error: &RendezvousError| matches!(error, RendezvousError::DifferentTokens { .. });
        assert_told(
            &error,
            is_tokens,
            &["than \"zero\": \"one\"", "FARREF_TOKEN"],
        );
    }
    Ok(())
}

/// S3: when the host of a growing group's store has gone, another member hosts it and tells it of the group,
/// so that those who come find it, under whatever name and more than once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_a_member_takes_the_store_over_when_its_host_has_gone() -> anyhow::Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let worker = |name: &str| {
        let place = format!("tcp://127.0.0.1:{port}");
        Worker::builder(name).rendezvous(&place).join_timeout(LIMIT)
    };
    let mut host = worker("host").join().await?;
    for (next, newcomer) in [("a", "host"), ("b", "a"), ("c", "a")] {
        let other = worker(next).join().await?;
        host.crash().await;
        // The former store is closed by now, so this is another one.
        let store = TcpStoreClient::connect("127.0.0.1", port, TEST_TIMEOUT).await?;
        store.get("farref/founders", TEST_TIMEOUT).await?;
        let newcomer = worker(newcomer).join().await?;
        assert_eq!(whoami::on(&newcomer.peer(next)?).await?, next);
        newcomer.leave().await?;
        host = other;
    }
    host.leave().await?;
    drop(host);
    // Nothing is hosted any more.
    while std::net::TcpListener::bind(("127.0.0.1", port)).is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

fn listens_by_tcp(worker: &Worker) -> bool {
    let peers = worker.snapshot().peers;
    let mut addresses = peers.iter().flat_map(|peer| &peer.addresses);
    addresses.any(|address| address.starts_with("tcp:"))
}

/// Nobody walks in: a TCP port does not say who connects to it, a Unix socket does.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_workers_of_one_host_listen_at_unix_sockets_only() -> anyhow::Result<()> {
    for (setting, set_up, by_tcp) in [
        (
            "nothing",
            (|builder| builder) as fn(WorkerBuilder) -> _,
            false,
        ),
        ("an empty token", |builder| builder.token(""), false),
        ("a token", |builder| builder.token("the group's"), true),
        ("insecure", WorkerBuilder::insecure, true),
    ] {
        let place = Place::new("door");
        let a = set_up(place.worker("a")).join().await?;
        let b = set_up(place.worker("b")).join().await?;
        let peer = a.wait_for_peer("b", TEST_TIMEOUT).await?;
        assert_eq!(whoami::on(&peer).await?, "b");
        assert_eq!(listens_by_tcp(&a), by_tcp, "with {setting}");
        let peers = a.snapshot().peers;
        let b_there = peers.iter().find(|peer| peer.name == "b");
        let transport = b_there.and_then(|peer| peer.transport.as_deref());
        assert_eq!(transport, Some("unix"), "with {setting}");
        b.leave().await?;
        a.leave().await?;
    }
    Ok(())
}

#[tokio::test]
async fn without_unix_sockets_there_has_to_be_a_token() -> anyhow::Result<()> {
    let place = Place::new("no-token");
    let by_tcp = |place: &Place| place.worker("alone").unix_sockets(false);
    let error = by_tcp(&place).join().await.err();
    let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(
        matches!(error, Some(Error::Config(ConfigError::NoToken { .. }))),
        "{text}"
    );
    for word in ["127.0.0.1", "FARREF_TOKEN", "farref launch", "insecure()"] {
        assert!(text.contains(word), "{text}");
    }
    let worker = by_tcp(&place).token("only we know").join().await?;
    assert!(listens_by_tcp(&worker));
    worker.leave().await?;
    // A group that has ended is not begun again.
    let place = Place::new("no-token-either");
    let worker = by_tcp(&place).insecure().join().await?;
    assert!(listens_by_tcp(&worker));
    worker.leave().await?;
    Ok(())
}

/// Nobody walks in: who asks for a port is told what it takes, and does not go without it unawares.
#[cfg(unix)]
#[tokio::test]
async fn who_asks_for_a_port_has_to_have_a_token() {
    let ways: [fn(WorkerBuilder) -> WorkerBuilder; 3] = [
        |builder| builder.bind(std::net::Ipv4Addr::LOCALHOST.into()),
        |builder| builder.port(29_999),
        |builder| builder.advertise_port(29_999),
    ];
    let place = Place::new("asks");
    for ask in ways {
        let error = ask(place.worker("alone")).join().await.err();
        assert!(
            matches!(error, Some(Error::Config(ConfigError::NoToken { .. }))),
            "{error:?}"
        );
    }
}

/// Who can only be reached by TCP is not reached without a token, and that is said.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_who_has_no_token_is_told_so_by_a_group_that_is_reached_by_tcp() -> anyhow::Result<()> {
    let place = Place::new("only-tcp");
    let founder = place.worker("a").unix_sockets(false).token("the group's");
    let a = founder.join().await?;
    let error = refused(place.worker("stranger")).await;
    let is_token = |error: &RendezvousError| matches!(error, RendezvousError::WrongToken { .. });
    assert_told(&error, is_token, &["another token", "FARREF_TOKEN"]);
    a.leave().await?;
    Ok(())
}

/// Listening at all interfaces is to talk over the network, whatever address the others are told.
#[tokio::test]
async fn who_listens_at_all_interfaces_has_to_say_that_it_may() {
    let place = Place::new("all-interfaces");
    let everywhere = std::net::Ipv4Addr::UNSPECIFIED.into();
    let builder = place.worker("alone").token("only we know").bind(everywhere);
    let error = builder.join().await.err();
    assert!(
        matches!(error, Some(Error::Config(ConfigError::Unencrypted { .. }))),
        "{error:?}"
    );
}

#[tokio::test]
async fn f4_a_password_in_the_place_to_meet_is_refused_and_not_shown() {
    let error = refused(Worker::builder("a").rendezvous("etcd://bob:secret@h:1/x")).await;
    let text = error.to_string();
    assert!(text.contains("password-file"), "{text}");
    assert!(!format!("{text} {error:?}").contains("secret"), "{error:?}");
}
