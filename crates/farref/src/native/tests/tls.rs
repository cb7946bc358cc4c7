//! TL-1 to TL-4 and HS-6: streams with TLS, who gets one, and with which certificate.

use std::fs;

use super::fixture::{Book, Setup};
use super::proxy::Proxy;
use super::*;
use crate::error::TlsError;
use crate::rendezvous::Address;
use crate::support::lock::lock;

#[path = "../../../tests/certificates/mod.rs"]
pub(super) mod certificates;

use certificates::{Authority, tls};

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

/// What is said to the first of these about the other's connection.
async fn rejection_of(left: Option<Tls>, right: Option<Tls>) -> String {
    let book: Arc<Book> = Arc::default();
    let left = side(1, left, &book).await;
    let right = side(2, right, &book).await;
    left.send(&right, control(1));
    eventually("it is told", || !lock(&book.rejected).is_empty()).await;
    assert_eq!(right.received_count(), 0);
    match lock(&book.rejected)[0].clone() {
        (by, Rejection::Certificate(why)) if by == right.node => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_arrive_once_and_in_order_over_tls_connections_that_break() {
    // TL-2, TL-3
    let authority = Authority::new();
    let book = Arc::default();
    let mut sides = Vec::new();
    for worker in 1..=2 {
        let proxy = Proxy::listen().await;
        let mut setup = Setup::new(worker, by_tcp(), &book);
        setup.tls = Some(authority.worker(&format!("w{worker}#1")));
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
    let one = || Some(ours.worker("w1#1"));
    let two = || Some(ours.worker("w2#1"));

    let why = rejection_of(None, two()).await;
    assert!(why.contains("with TLS only"), "{why}");
    let why = rejection_of(one(), None).await;
    assert!(why.contains("without TLS"), "{why}");
    let why = rejection_of(one(), Some(theirs.worker("w2#1"))).await;
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
    let why = rejection_of(one(), Some(other.clone())).await;
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
    let honest = side(1, Some(authority.worker("w1#1")), &book).await;
    let right = side(2, Some(authority.worker("w2#1")), &book).await;
    let mut liar = Setup::new(1, by_tcp(), &book);
    liar.tls = Some(authority.worker("liar"));
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
    let proxy = Proxy::listen().await;
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
