//! TL-1 to TL-4 and HS-6: streams with TLS, who gets one, and with which certificate.

use std::fs;
use std::time::Duration;

use super::fixture::{Book, Setup};
use super::proxy::Proxy;
use super::*;
use crate::error::TlsError;
use crate::native::transport::Reach;
use crate::native::{ObserverConnection, ObserverConnectionError, Predecessors};
use crate::rendezvous::{Address, Liveness, LivenessProbe as _, RendezvousError};
use crate::report::snapshot::Snapshot;
use crate::support::lock::lock;

#[path = "../../../tests/certificates/mod.rs"]
pub(in crate::native) mod certificates;

use certificates::{Authority, tls, worker_tls};

fn by_tcp() -> BindOptions {
    BindOptions {
        unix: false,
        ..BindOptions::default()
    }
}

/// A worker with a certificate.
async fn side(worker: u32, tls: Option<Tls>, book: &Arc<Book>) -> Side {
    let mut setup = Setup::new(worker, by_tcp(), book);
    setup.tls = tls;
    setup.start().await
}

/// What is said to the first of these about its certificate or the other's.
async fn rejection_of(left: Option<Tls>, right: Option<Tls>) -> String {
    match rejected(left, right).await {
        Rejection::Certificate(why) => why,
        other => panic!("{other:?}"),
    }
}

/// How the first of these hears that it has no connection with the other.
async fn rejected(left: Option<Tls>, right: Option<Tls>) -> Rejection {
    let book: Arc<Book> = Arc::default();
    let left = side(1, left, &book).await;
    let right = side(2, right, &book).await;
    left.send(&right, control(1));
    eventually("it is told", || !lock(&book.rejected).is_empty()).await;
    assert_eq!(right.received_count(), 0);
    let (by, rejection) = lock(&book.rejected)[0].clone();
    assert_eq!(by, right.node);
    rejection
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_arrive_once_and_in_order_over_tls_connections_that_break() {
    // TL-2, TL-3
    let authority = Authority::new();
    let book = Arc::default();
    let mut sides = Vec::new();
    for worker in 1..=2 {
        let proxy = Proxy::listen();
        let mut setup = Setup::new(worker, by_tcp(), &book);
        setup.tls = Some(worker_tls(&authority, &format!("w{worker}#1")));
        setup.reached_at = Some(Address::Tcp(proxy.address));
        let side = setup.start().await;
        proxy.forward_to(side.tcp_address());
        sides.push((side, proxy));
    }
    let [(left, before_left), (right, before_right)] = &sides[..] else {
        unreachable!("two were made")
    };
    const ROUNDS: u64 = 20;
    let mut seed = fastrand::Rng::with_seed(18);
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        // Whoever has dialed: more than that is said in each round.
        for proxy in [before_left, before_right] {
            proxy.cut_after(seed.usize(1..1 << 20));
        }
        for number in 1..10 {
            let size = [10, 5_000, 70_000, 1 << 20][number % 4];
            let number = round * 10 + number as u64;
            left.send(right, call(number, size));
            right.send(left, control(number));
            all.push(number);
        }
        eventually("all arrives", || {
            right.received_count() == all.len() && left.received_count() == all.len()
        })
        .await;
    }
    assert_eq!(left.received_on(farref_proto::Lane::Control), all);
    for message in right.received() {
        let Message::Call(call) = message else {
            panic!("not a call")
        };
        let farref_proto::Target::Answer(id) = call.head.target else {
            panic!("not one of ours")
        };
        assert!(call.arguments.body.iter().all(|byte| *byte == id.0 as u8));
    }
    let link = left.link_to(right).expect("a link");
    assert_eq!(link.transport, Some("tls"));
    assert!(link.connections > ROUNDS, "{}", link.connections);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_no_certificate_of_the_authority_is_told_so() {
    // TL-1, HS-6
    let [ours, theirs] = [Authority::new(), Authority::new()];
    let one = || Some(worker_tls(&ours, "w1#1"));
    let two = || Some(worker_tls(&ours, "w2#1"));

    let why = rejection_of(None, two()).await;
    assert!(why.contains("with TLS only"), "{why}");
    let why = rejection_of(one(), None).await;
    assert!(why.contains("without TLS"), "{why}");
    let why = rejection_of(one(), Some(worker_tls(&theirs, "w2#1"))).await;
    assert!(why.contains("UnknownIssuer"), "{why}");

    // The acceptor finds nothing wrong with the authority of the dialer's: that one is another's.
    let mixed = theirs.issue("mixed", &["farref:worker/w1%231"]);
    let both = ours.file("both.pem");
    fs::write(&both, ours.pem() + &theirs.pem()).expect("a file");
    let [certificate, key, _] = mixed;
    let why = rejection_of(Some(tls([certificate, key, both])), two()).await;
    assert!(
        why.contains("does not take this worker's certificate"),
        "{why}"
    );

    let other = tls(ours.issue("other", &["farref:worker/somebody"]));
    // Somebody else is where it was dialed: nothing is said about the worker that was meant.
    let Rejection::Elsewhere(why) = rejected(one(), Some(other.clone())).await else {
        panic!("somebody else was taken for it");
    };
    assert!(
        why.contains("\"somebody\"") && why.contains("w2#1"),
        "{why}"
    );
    let why = rejection_of(Some(other), two()).await;
    assert!(why.contains("name or number"), "{why}");
    let observer = tls(ours.issue("observer", &["farref:observer"]));
    let why = rejection_of(Some(observer), two()).await;
    assert!(why.contains("name or number"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_does_not_speak_for_another() {
    // HS-6: it has a certificate and a name of its own, and says that it is somebody else's life.
    let authority = Authority::new();
    let book: Arc<Book> = Arc::default();
    let honest = side(1, Some(worker_tls(&authority, "w1#1")), &book).await;
    let right = side(2, Some(worker_tls(&authority, "w2#1")), &book).await;
    let mut liar = Setup::new(1, by_tcp(), &book);
    liar.tls = Some(worker_tls(&authority, "liar"));
    liar.name = Some("liar".to_owned());
    let liar = liar.start().await;
    liar.send(&right, control(7));
    eventually("it is told", || !lock(&book.rejected).is_empty()).await;
    assert_eq!(right.received_count(), 0);
    honest.send(&right, control(1));
    eventually("who it is arrives", || right.received_count() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_replaced_while_the_group_goes_on() {
    // TL-4
    let [old, new] = [Authority::new(), Authority::new()];
    let uris = ["farref:worker/w1%231", "farref:worker/w2%231"];
    let files = uris.map(|uri| old.issue(&uri[14..16], &[uri]));
    let book: Arc<Book> = Arc::default();
    let mut left = Setup::new(1, by_tcp(), &book);
    left.tls = Some(tls(files[0].clone()));
    // Nobody listens there: all connections go through the proxy.
    left.reached_at = Some(Address::Tcp(([127, 0, 0, 1], 1).into()));
    let left = left.start().await;
    let proxy = Proxy::listen();
    let mut right = Setup::new(2, by_tcp(), &book);
    right.tls = Some(tls(files[1].clone()));
    right.reached_at = Some(Address::Tcp(proxy.address));
    let right = right.start().await;
    proxy.forward_to(right.tcp_address());
    left.send(&right, control(1));
    eventually("it arrives", || right.received_count() == 1).await;
    let reconnect = async |count: usize| {
        let before = left.link_to(&right).expect("a link").connections;
        proxy.cut_after(1);
        left.send(&right, control(count as u64));
        eventually("it arrives by another connection", || {
            let connections = left.link_to(&right).expect("a link").connections;
            right.received_count() == count && connections > before
        })
        .await;
    };

    // A key without its certificate: the pair before it counts.
    let [certificate, key, authorities] = &files[0];
    let (former_key, former) = (fs::read(key), fs::read(certificate));
    fs::copy(&files[1][1], key).expect("a file");
    reconnect(2).await;
    fs::write(key, former_key.expect("a key")).expect("a file");

    // The new authority beside the old one, then certificates of the new one, then it alone.
    fs::write(authorities, old.pem() + &new.pem()).expect("a file");
    reconnect(3).await;
    for (index, uri) in uris.iter().enumerate() {
        let issued = new.issue(&uri[14..16], &[uri]);
        for (from, to) in issued.iter().zip(&files[index]).take(2) {
            fs::copy(from, to).expect("a file");
        }
        reconnect(4 + index).await;
    }
    fs::write(authorities, new.pem()).expect("a file");
    reconnect(6).await;

    // Another's certificate is not put to use, however good it is.
    let [liar, liars, _] = new.issue("liar", &["farref:worker/somebody"]);
    let own = [certificate, key].map(|path| fs::read(path).expect("a file"));
    for (from, to) in [(&liar, certificate), (&liars, key)] {
        fs::copy(from, to).expect("a file");
    }
    reconnect(7).await;
    for (text, to) in own.iter().zip([certificate, key]) {
        fs::write(to, text).expect("a file");
    }
    reconnect(8).await;

    // Whoever has not gone along is out.
    let (former, key) = (former.expect("a certificate"), left.card.name.clone());
    let stale = old.file("stale.pem");
    fs::write(&stale, former).expect("a file");
    assert_eq!(key, "w1#1");
    let error = Tls::from_files(&stale, &files[0][1], authorities).expect_err("an old one");
    assert!(matches!(error, TlsError::Untrusted { .. }), "{error}");
}

#[test]
fn files_that_make_no_sense_are_refused_with_their_names() {
    let authority = Authority::new();
    let [certificate, key, authorities] = authority.issue("a", &["farref:worker/a"]);
    let [nobody, nobodys, _] = authority.issue("nobody", &["https://example.org"]);
    let [expired, expireds, _] = authority.issue_until("expired", &["farref:worker/a"], 2001);
    let garbage = authority.file("garbage");
    fs::write(&garbage, "-----BEGIN CERTIFICATE-----\nno\n").expect("a file");
    let missing = authority.file("missing");
    let error = |certificate: &_, key: &_, authorities: &_| {
        let [a, b, c]: [&std::path::PathBuf; 3] = [certificate, key, authorities];
        Tls::from_files(a, b, c).expect_err("no sense")
    };
    assert!(
        matches!(error(&missing, &key, &authorities), TlsError::Unreadable { path, .. } if path == missing)
    );
    assert!(matches!(
        error(&certificate, &missing, &authorities),
        TlsError::Unreadable { .. }
    ));
    assert!(matches!(
        error(&garbage, &key, &authorities),
        TlsError::Empty { .. }
    ));
    assert!(matches!(
        error(&certificate, &certificate, &authorities),
        TlsError::Empty { .. }
    ));
    assert!(matches!(
        error(&certificate, &nobodys, &authorities),
        TlsError::Unusable { .. }
    ));
    assert!(matches!(
        error(&nobody, &nobodys, &authorities),
        TlsError::Nameless { .. }
    ));
    let error = error(&expired, &expireds, &authorities);
    assert!(matches!(error, TlsError::Untrusted { .. }), "{error}");
    assert!(error.to_string().contains("farref certs issue"), "{error}");
}

/// Files that cannot be read to an end: there is a pipe in place of one.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_cannot_be_looked_at_hold_nobody_up() {
    // TL-4
    let authority = Authority::new();
    let book: Arc<Book> = Arc::default();
    let right = side(2, Some(worker_tls(&authority, "w2#1")), &book).await;
    let files = authority.issue("left", &["farref:worker/w1%231"]);
    let left = side(1, Some(tls(files.clone())), &book).await;
    let [_, key, _] = files;
    fs::remove_file(&key).expect("a file");
    let made = std::process::Command::new("mkfifo").arg(&key).status();
    assert!(made.is_ok_and(|status| status.success()), "a pipe");
    left.send(&right, control(1));
    right.send(&left, control(2));
    eventually("both arrive", || {
        right.received_count() == 1 && left.received_count() == 1
    })
    .await;
    // Whoever still reads it comes to an end.
    let mut both_ends = fs::OpenOptions::new();
    drop(both_ends.read(true).write(true).open(&key));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_is_asked_for_a_few_at_a_time_who_connect() {
    // HS-4
    let authority = Authority::new();
    let book: Arc<Book> = Arc::default();
    let right = side(20, Some(worker_tls(&authority, "w20#1")), &book).await;
    let mut others = Vec::new();
    for worker in 1..=12 {
        let tls = worker_tls(&authority, &format!("w{worker}#1"));
        others.push(side(worker, Some(tls), &book).await);
    }
    lock(&book.cards).retain(|node, _| *node == right.node);
    let hanging = book.hanging.get_or_init(Default::default);
    for other in &others {
        other.send(&right, control(1));
    }
    eventually("all get in, listed or not", || {
        right.received_count() == others.len()
    })
    .await;
    let most = hanging.most.load(std::sync::atomic::Ordering::SeqCst);
    assert!((1..=8).contains(&most), "{most}");
}

/// PS-1, PS-2: a life that is there is not taken for gone because certificates do not fit, nor somebody else for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_life_whose_certificate_does_not_fit_is_not_taken_for_gone() {
    let [ours, theirs] = [Authority::new(), Authority::new()];
    let book: Arc<Book> = Arc::default();
    let life = side(2, Some(worker_tls(&ours, "w2#1")), &book).await;
    let plain = side(3, None, &book).await;
    let ask = async |card: &Card, tls: Option<Tls>| {
        let by_tcp = Reach {
            network: None,
            tcp: true,
        };
        let asking = Predecessors::new("w", "elsewhere", Vec::new(), None, by_tcp, tls);
        asking.probe(card, Duration::from_secs(60)).await
    };
    let does_not_fit = |found| matches!(found, Err(RendezvousError::Certificate { .. }));
    let found = ask(&life.card, Some(worker_tls(&ours, "asks"))).await;
    assert!(matches!(found, Ok(Liveness::Alive)), "{found:?}");
    assert!(does_not_fit(ask(&life.card, None).await));
    let strange = Some(worker_tls(&theirs, "asks"));
    assert!(does_not_fit(ask(&life.card, strange.clone()).await));
    assert!(does_not_fit(ask(&plain.card, strange.clone()).await));

    // Whoever has its port is somebody else: its card says otherwise.
    let mut before = life.card.clone();
    before.certificate = None;
    let found = ask(&before, None).await;
    assert!(matches!(found, Ok(Liveness::Gone)), "{found:?}");
    let mut before = life.card.clone();
    before.certificate = strange.as_ref().map(Tls::tag);
    let found = ask(&before, strange).await;
    assert!(matches!(found, Ok(Liveness::Gone)), "{found:?}");
    let mut another = life.card.clone();
    another.name = "another".to_owned();
    let found = ask(&another, Some(worker_tls(&ours, "asks"))).await;
    assert!(matches!(found, Ok(Liveness::Gone)), "{found:?}");

    // It has shown its certificate, and does not take the other's: whatever its card says.
    let [certificate, key, _] = theirs.issue("mixed", &["farref:worker/asks"]);
    let both = ours.file("both.pem");
    fs::write(&both, ours.pem() + &theirs.pem()).expect("a file");
    let mixed = tls([certificate, key, both]);
    let mut unsaid = life.card.clone();
    unsaid.certificate = Some(Default::default());
    assert!(does_not_fit(ask(&unsaid, Some(mixed)).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observers_believe_a_worker_what_its_certificate_says() {
    // OB-4
    let authority = Authority::new();
    let book: Arc<Book> = Arc::default();
    let worker = side(1, Some(worker_tls(&authority, "w1#1")), &book).await;
    let address = Address::Tcp(worker.tcp_address());
    let observer = tls(authority.issue("observer", &["farref:observer"]));
    let look = async |meant: Option<&str>, says: &str| {
        *lock(&book.shown) = Some(Snapshot {
            worker: says.to_owned(),
            ..Snapshot::default()
        });
        let mut seen = ObserverConnection::open(&address, b"", Some(&observer), meant).await?;
        seen.ask(0, 0).await
    };
    for meant in [None, Some("w1#1")] {
        let seen = look(meant, "w1#1").await.expect("a snapshot");
        assert_eq!(seen.worker, "w1#1");
    }
    for (meant, says) in [
        (Some("w2#1"), "w2#1"),
        (Some("w1#1"), "w2#1"),
        (None, "w2#1"),
    ] {
        let error = look(meant, says).await.expect_err("somebody else");
        assert!(
            matches!(&error, ObserverConnectionError::Certificate(why) if why.contains("w2#1")),
            "{error}"
        );
    }
}
