//! HS-1 to HS-5: strangers are turned away with a reason, and disturb nobody.

use std::time::Duration;

use farref_proto::{GroupId, Hello, SESSION_VERSION};
use ring::hmac;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{GROUP, Setup, impatient};
use super::proxy::Proxy;
use super::*;
use crate::native::handshake::{
    Claim, Conversation, Greeting, HandshakeFailure, Purpose, Refusal, Reply, SessionHello, Verdict,
};
use crate::native::inquiry::{ObserverConnection, ObserverConnectionError};
use crate::native::transport::{Reach, Stream, reachable};
use crate::rendezvous::{Address, Liveness, LivenessProbe as _, RendezvousError, TokenTag};
use crate::support::lock::lock;

pub(super) const TOKEN: &[u8] = b"the group's secret";

fn key(token: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token)
}

/// Who tries addresses of TCP.
fn by_tcp() -> Reach {
    Reach {
        network: None,
        tcp: true,
    }
}

/// Two workers that share a token and conversation by TCP.
async fn guarded_pair(config: NativeConfig) -> [Side; 2] {
    let book = Arc::default();
    let side = |worker| {
        let bind = BindOptions {
            unix: false,
            ..BindOptions::default()
        };
        let mut setup = Setup::new(worker, bind, &book);
        setup.token = Some(TOKEN.to_vec());
        setup.config = config.clone();
        setup.start()
    };
    [side(1).await, side(2).await]
}

async fn raw(to: &Side) -> TcpStream {
    TcpStream::connect(to.tcp_address())
        .await
        .expect("a connection")
}

async fn stream(to: &Side) -> Stream {
    Stream::tcp(raw(to).await).expect("a stream")
}

fn greeting(to: &Side) -> Greeting {
    Greeting::Worker {
        group: GROUP,
        to: to.node,
        nonce: [7; 16],
    }
}

pub(super) fn claim(from: NodeId, to: &Side) -> Claim {
    let mut card = to.card.clone();
    card.node = from;
    Claim {
        card,
        max_calls: 1,
        purpose: Purpose::Main(SessionHello {
            epoch: 1000,
            session: Hello {
                version: SESSION_VERSION,
                group: GROUP,
                from,
                to: to.node,
                expected: [0; 3],
            },
        }),
    }
}

/// What the acceptor says to a greeting.
async fn reply_to(to: &Side, greeting: &Greeting) -> Result<Reply, HandshakeFailure> {
    let mut stream = stream(to).await;
    let key = key(TOKEN);
    let mut conversation = Conversation::new(&mut stream, &key);
    conversation.send_opening(greeting).await?;
    conversation.receive_opening().await
}

/// What the acceptor says to a claim made under a token.
async fn verdict_on(to: &Side, claim: &Claim, token: &[u8]) -> (Verdict, bool) {
    let (verdict, is_proved, _) = connect_as(to, claim, token).await;
    (verdict, is_proved)
}

/// The same, with the connection.
pub(super) async fn connect_as(to: &Side, claim: &Claim, token: &[u8]) -> (Verdict, bool, Stream) {
    let mut stream = stream(to).await;
    let key = key(token);
    let mut conversation = Conversation::new(&mut stream, &key);
    conversation
        .send_opening(&greeting(to))
        .await
        .expect("said");
    let reply: Reply = conversation.receive_opening().await.expect("a reply");
    assert!(matches!(reply, Reply::Challenge(_)), "{reply:?}");
    conversation.send_claim(claim).await.expect("said");
    let (verdict, is_proved) = conversation.receive_verdict().await.expect("a verdict");
    (verdict, is_proved, stream)
}

/// Whether the acceptor closes the connection without a word.
async fn is_closed_silently(stream: &mut TcpStream) -> bool {
    let mut bytes = Vec::new();
    // A reset is a way of closing too.
    let _ = stream.read_to_end(&mut bytes).await;
    bytes.is_empty()
}

#[tokio::test]
async fn strangers_are_told_why() {
    let [left, right] = guarded_pair(impatient()).await;
    left.meet(&right).await;

    let foreign = Greeting::Worker {
        group: GroupId(1),
        to: right.node,
        nonce: [7; 16],
    };
    let reply = reply_to(&right, &foreign).await;
    assert!(matches!(reply, Ok(Reply::Refused(Refusal::Group))));

    let misdirected = greeting(&left);
    match reply_to(&right, &misdirected).await {
        Ok(Reply::Refused(Refusal::WrongLife { here })) => assert_eq!(here, right.node),
        other => panic!("{other:?}"),
    }

    let newcomer = NodeId::new(9, 1);
    let wrong = verdict_on(&right, &claim(newcomer, &right), b"guess").await;
    assert!(matches!(wrong, (Verdict::Refused(Refusal::Token), false)));

    lock(&right.inbound.gone).insert(newcomer);
    let gone = verdict_on(&right, &claim(newcomer, &right), TOKEN).await;
    assert!(matches!(gone, (Verdict::Refused(Refusal::Gone), true)));

    let bulk = Claim {
        purpose: Purpose::Bulk(12),
        ..claim(NodeId::new(8, 1), &right)
    };
    let stale = verdict_on(&right, &bulk, TOKEN).await;
    assert!(matches!(stale, (Verdict::Refused(Refusal::Stale), true)));

    // Nobody has noticed.
    left.send(&right, control(1));
    eventually("a good peer is undisturbed", || right.received_count() == 2).await;
    assert_eq!(left.link_to(&right).expect("a link").connections, 1);
}

/// Where somebody listens who speaks that version of the wire, whatever it says else.
async fn speaking(version: u16) -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut reply = b"farref".to_vec();
            reply.extend_from_slice(&version.to_le_bytes());
            reply.extend_from_slice(&[0; 4]);
            let _ = stream.write_all(&reply).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    });
    Address::Tcp(address)
}

/// F4: who is not taken for a reason that only an operator can mend says so to its runtime.
#[tokio::test]
async fn a_dialer_with_another_token_or_wire_is_told_who_turned_it_away() {
    let book: Arc<fixture::Book> = Arc::default();
    let start = |worker, token: &[u8]| {
        let bind = BindOptions {
            unix: false,
            ..BindOptions::default()
        };
        let mut setup = Setup::new(worker, bind, &book);
        setup.token = Some(token.to_vec());
        setup.start()
    };
    let (left, right) = (start(1, TOKEN).await, start(2, b"guess").await);
    right.send(&left, control(1));
    eventually("the dialer is told", || {
        lock(&book.rejected).contains(&(left.node, Rejection::Token))
    })
    .await;
    assert_eq!(left.received_count(), 0);

    // One that speaks another version.
    let other = WIRE_VERSION + 1;
    let mut card = left.card.clone();
    card.node = NodeId::new(3, 1);
    card.addresses = vec![speaking(other).await];
    lock(&book.cards).insert(card.node, card.clone());
    right.agent.enqueue(card.node, control(1));
    eventually("the dialer is told", || {
        lock(&book.rejected).contains(&(card.node, Rejection::Version(other)))
    })
    .await;
}

/// PS-1, F3: a life is present only if it proves it, and a member is not disturbed by those who ask.
#[tokio::test]
async fn only_a_life_that_proves_itself_is_present() {
    let [left, right] = guarded_pair(impatient()).await;
    let ask = async |card: &Card, token: &[u8]| {
        let token = std::str::from_utf8(token).ok();
        let asking = Predecessors::new("w", "elsewhere", Vec::new(), token, by_tcp(), None);
        asking.probe(card, Duration::from_secs(60)).await
    };
    assert!(matches!(ask(&right.card, TOKEN).await, Ok(Liveness::Alive)));
    let refused = ask(&right.card, b"guess").await;
    assert!(matches!(refused, Err(RendezvousError::WrongToken { .. })));

    // PS-2: whoever has its port has another token, or another wire, than it had.
    let mut replaced = right.card.clone();
    replaced.token = Some(TokenTag::of("guess"));
    assert!(matches!(ask(&replaced, b"guess").await, Ok(Liveness::Gone)));
    let other = WIRE_VERSION + 1;
    replaced.addresses = vec![speaking(other).await];
    assert!(matches!(ask(&replaced, TOKEN).await, Ok(Liveness::Gone)));
    replaced.wire = other;
    let refused = ask(&replaced, TOKEN).await;
    assert!(matches!(refused, Err(RendezvousError::WireVersion { .. })));

    let mut earlier = right.card.clone();
    earlier.node = NodeId::new(2, 0);
    assert!(matches!(ask(&earlier, TOKEN).await, Ok(Liveness::Gone)));
    // Where this worker listens nobody else does.
    let token = std::str::from_utf8(TOKEN).ok();
    let own = right.card.addresses.clone();
    let itself = Predecessors::new("w", "elsewhere", own, token, by_tcp(), None);
    let found = itself.probe(&right.card, Duration::from_secs(60)).await;
    assert!(matches!(found, Ok(Liveness::Gone)));

    // Somebody has taken its port, and says nothing, or what no worker says.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut elsewhere = right.card.clone();
    elsewhere.addresses = vec![Address::Tcp(listener.local_addr().expect("an address"))];
    let silent = Predecessors::new("w", "elsewhere", Vec::new(), token, by_tcp(), None);
    let found = silent.probe(&elsewhere, Duration::from_millis(50)).await;
    assert!(matches!(found, Ok(Liveness::Silent)));
    let talking = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"220 mail.example.org ESMTP").await;
        }
    });
    let found = silent.probe(&elsewhere, Duration::from_secs(60)).await;
    assert!(matches!(found, Ok(Liveness::Gone)));
    talking.abort();

    left.meet(&right).await;
    assert_eq!(left.link_to(&right).expect("a link").connections, 1);
    right.agent.close(Duration::from_secs(1)).await;
    assert!(matches!(ask(&right.card, TOKEN).await, Ok(Liveness::Gone)));
}

#[tokio::test]
async fn a_greeting_that_arrives_late_is_a_leftover() {
    // CO-3: the left end made it before the connection that stands, and gave it up.
    let [left, right] = guarded_pair(impatient()).await;
    left.meet(&right).await;
    let mut late = claim(left.node, &right);
    if let Purpose::Main(hello) = &mut late.purpose {
        hello.epoch = 0;
    }
    let verdict = verdict_on(&right, &late, TOKEN).await;
    assert!(matches!(verdict, (Verdict::Refused(Refusal::Stale), true)));
    left.send(&right, control(1));
    eventually("messages still arrive", || right.received_count() == 2).await;
    assert_eq!(left.link_to(&right).expect("a link").connections, 1);
}

#[tokio::test]
async fn a_claim_in_somebody_elses_name_harms_nobody() {
    let [left, right] = guarded_pair(impatient()).await;
    left.meet(&right).await;
    let mut forged = claim(left.node, &right);
    if let Purpose::Main(hello) = &mut forged.purpose {
        hello.session.from = NodeId::new(5, 5);
    }
    let verdict = verdict_on(&right, &forged, TOKEN).await;
    assert!(matches!(
        verdict,
        (Verdict::Refused(Refusal::Session), true)
    ));
    left.send(&right, control(1));
    eventually("messages still arrive", || right.received_count() == 2).await;
    assert_eq!(left.link_to(&right).expect("a link").connections, 1);
}

#[tokio::test]
async fn another_version_is_refused_and_named() {
    let [_, right] = guarded_pair(impatient()).await;
    let mut stream = raw(&right).await;
    let mut hello = b"farref".to_vec();
    hello.extend(9_u16.to_le_bytes());
    hello.extend(0_u32.to_le_bytes());
    stream.write_all(&hello).await.expect("said");
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(
        &answer, b"farref\x08\0",
        "whatever else it says, it says its version"
    );
}

#[tokio::test]
async fn garbage_and_oversized_greetings_are_cut_off() {
    let [left, right] = guarded_pair(impatient()).await;
    let mut oversized = b"farref\x08\0".to_vec();
    oversized.extend(u32::MAX.to_le_bytes());
    let malformed = b"farref\x08\0\x02\0\0\0\xff\xff".to_vec();
    let garbage = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        vec![0; 1000],
        oversized,
        malformed,
    ];
    for bytes in garbage {
        let mut stream = raw(&right).await;
        stream.write_all(&bytes).await.expect("said");
        assert!(is_closed_silently(&mut stream).await, "{bytes:?}");
    }
    left.meet(&right).await;
}

#[tokio::test]
async fn an_oversized_claim_is_cut_off() {
    // HS-4
    let [_, right] = guarded_pair(impatient()).await;
    let mut claim = claim(NodeId::new(9, 1), &right);
    claim.card.name = "x".repeat(100 << 10);
    let mut stream = stream(&right).await;
    let key = key(TOKEN);
    let mut conversation = Conversation::new(&mut stream, &key);
    conversation
        .send_opening(&greeting(&right))
        .await
        .expect("said");
    let _challenge: Reply = conversation.receive_opening().await.expect("a reply");
    // It may be cut off before it has said all.
    let _ = conversation.send_claim(&claim).await;
    assert!(conversation.receive_verdict().await.is_err());
    assert!(right.agent.links().is_empty());
}

#[tokio::test]
async fn those_who_dawdle_are_cut_off_and_keep_nobody_out() {
    // HS-4
    let mut config = impatient();
    config.max_handshakes = 8;
    config.handshake_timeout = Duration::from_millis(500);
    let [left, right] = guarded_pair(config).await;
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut stream = raw(&right).await;
        stream.write_all(b"farr").await.expect("said");
        slow.push(stream);
    }
    left.meet(&right).await;
    for mut stream in slow {
        assert!(is_closed_silently(&mut stream).await);
    }
}

#[tokio::test]
async fn workers_with_different_tokens_never_meet() {
    let book = Arc::default();
    let side = |worker: u32, token: &[u8]| {
        let mut setup = Setup::new(worker, BindOptions::default(), &book);
        setup.token = Some(token.to_vec());
        setup.config.peer_timeout = Duration::from_millis(300);
        setup.start()
    };
    let (left, right) = (side(1, b"one").await, side(2, b"two").await);
    left.send(&right, control(1));
    right.send(&left, control(1));
    eventually("they give up on each other", || {
        *lock(&left.inbound.suspected) == [right.node]
            && *lock(&right.inbound.suspected) == [left.node]
    })
    .await;
    assert_eq!(left.received_count() + right.received_count(), 0);
    assert!(lock(&book.met).is_empty());
}

#[tokio::test]
async fn an_impostor_cannot_tell_a_worker_that_it_is_gone() {
    // HS-3
    let [left, _] = guarded_pair(impatient()).await;
    let impostor = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let victim = NodeId::new(7, 1);
    let link = left.agent.links.link_or_new(victim).expect("a link");
    let mut card = left.card.clone();
    card.node = victim;
    card.addresses = vec![Address::Tcp(impostor.local_addr().expect("an address"))];
    link.state().card = Some(card);
    left.agent.enqueue(victim, control(1));
    let guess = key(b"guess");
    for round in 0..10 {
        let (stream, _) = impostor.accept().await.expect("a dialer");
        let mut stream = Stream::tcp(stream).expect("a stream");
        let mut conversation = Conversation::new(&mut stream, &guess);
        let _greeting: Greeting = conversation.receive_opening().await.expect("a greeting");
        if round % 2 == 0 {
            let gone = Reply::Refused(Refusal::Gone);
            conversation.send_opening(&gone).await.expect("said");
        } else {
            let challenge = Reply::Challenge([1; 16]);
            conversation.send_opening(&challenge).await.expect("said");
            let (_, proved) = conversation
                .receive_claim::<Claim>()
                .await
                .expect("a claim");
            assert!(!proved, "not under the impostor's token");
            let gone = Verdict::Refused(Refusal::Gone);
            conversation.send_verdict(&gone).await.expect("said");
        }
    }
    assert!(lock(&left.inbound.refused).is_empty());
}

#[tokio::test]
async fn a_proof_is_good_for_one_handshake_and_one_direction() {
    // HS-1
    let network = MemoryNetwork::new();
    let mut listener = network.bind("acceptor").expect("a name");
    let [_, right] = guarded_pair(impatient()).await;
    let key = key(TOKEN);
    let claim = claim(NodeId::new(9, 1), &right);
    let mut recorded: Option<Vec<u8>> = None;
    for nonce in [1, 2] {
        let dialed = network.connect("dialer", "acceptor").await.expect("one");
        let mut dialed = Stream::memory(dialed);
        let mut accepted = Stream::memory(listener.accept().await);
        let mut dialer = Conversation::new(&mut dialed, &key);
        let mut acceptor = Conversation::new(&mut accepted, &key);
        dialer.send_opening(&greeting(&right)).await.expect("said");
        let _: Greeting = acceptor.receive_opening().await.expect("heard");
        let challenge = Reply::Challenge([nonce; 16]);
        acceptor.send_opening(&challenge).await.expect("said");
        let _: Reply = dialer.receive_opening().await.expect("heard");
        if let Some(recorded) = &recorded {
            // The dialer's own words of another handshake.
            dialer.write.write_all(recorded).await.expect("said");
            let (_, proved) = acceptor.receive_claim::<Claim>().await.expect("heard");
            assert!(!proved, "a recorded claim proves nothing");
        } else {
            dialer.send_claim(&claim).await.expect("said");
            let mut bytes = Vec::new();
            acceptor
                .read
                .read_until(&mut bytes, 4)
                .await
                .expect("heard");
            let length = 4 + u32::from_le_bytes(bytes[..4].try_into().expect("4")) as usize;
            acceptor
                .read
                .read_until(&mut bytes, length)
                .await
                .expect("heard");
            // Sent back, the dialer's words are not the acceptor's.
            acceptor.write.write_all(&bytes).await.expect("said");
            let reflected = dialer.receive_verdict().await;
            assert!(!matches!(reflected, Ok((_, true))));
            recorded = Some(bytes);
        }
    }
}

/// Who takes no connections by TCP, because whoever makes them may be anybody, makes none either.
#[tokio::test]
async fn who_lets_nobody_in_by_tcp_goes_to_nobody_by_tcp() {
    let [left, right] = guarded_pair(impatient()).await;
    let host = &left.card.host;
    assert_eq!(reachable(&right.card, host, &by_tcp()).len(), 1);
    let by_unix = Reach {
        tcp: false,
        ..by_tcp()
    };
    assert!(reachable(&right.card, host, &by_unix).is_empty());
}

/// Does something as another user, if this process may become one.
#[cfg(target_os = "linux")]
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    use rustix::process::Uid;
    // Of this thread alone, whose last act it is.
    let work = || {
        let became = rustix::thread::set_thread_uid(Uid::from_raw(65_534));
        became.is_ok().then(work)
    };
    std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &str) -> std::os::unix::net::SocketAddr {
    use std::os::linux::net::SocketAddrExt as _;
    let name = name.strip_prefix('@').expect("an abstract name");
    std::os::unix::net::SocketAddr::from_abstract_name(name).expect("a name")
}

/// HS-5: in both directions, over sockets of another user's.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn another_users_processes_are_neither_heard_nor_spoken_to() {
    use std::os::unix::net::{UnixListener, UnixStream};

    let book: Arc<fixture::Book> = Arc::default();
    let worker = Setup::new(1, BindOptions::default(), &book).start().await;
    let unix = |address: &Address| match address {
        Address::Unix(name) => Some(abstract_address(name)),
        _ => None,
    };
    let address = worker.card.addresses.iter().find_map(unix);
    let address = address.expect("a Unix socket");
    let Some(stream) = as_nobody(|| UnixStream::connect_addr(&address).expect("a connection"))
    else {
        return eprintln!("not tested: this process cannot become another user's");
    };
    stream.set_nonblocking(true).expect("a socket");
    let stream = tokio::net::UnixStream::from_std(stream).expect("a socket");
    let mut stream = Stream::unix(stream).expect("a stream");
    let key = key(b"");
    let mut conversation = Conversation::new(&mut stream, &key);
    let greeting = greeting(&worker);
    conversation.send_opening(&greeting).await.expect("sent");
    let reply: Reply = conversation.receive_opening().await.expect("a reply");
    assert!(
        matches!(reply, Reply::Refused(Refusal::User)),
        "they are told why: {reply:?}"
    );

    // Somebody else listens where a peer is said to be.
    let name = format!("@farref-test-{:016x}", fastrand::u64(..));
    let address = abstract_address(&name);
    let listener = as_nobody(|| UnixListener::bind_addr(&address).expect("a listener"));
    let listener = listener.expect("it was possible before");
    let mut card = worker.card.clone();
    card.node = NodeId::new(3, 1);
    card.addresses = vec![Address::Unix(name)];
    lock(&book.cards).insert(card.node, card.clone());
    worker.agent.enqueue(card.node, control(1));
    eventually("the worker says so", || {
        lock(&book.rejected).contains(&(card.node, Rejection::User))
    })
    .await;
    let (mut heard, _) = listener.accept().expect("it has tried");
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut heard, &mut bytes).expect("the end");
    assert!(bytes.is_empty(), "nothing was said");
}

/// What a store says of where a worker is may be a lie: whoever sits there could pass on all that is said, and read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_its_worker_does_not_name_is_not_believed() {
    let by_tcp = || BindOptions {
        unix: false,
        ..BindOptions::default()
    };
    let book = Arc::default();
    let mut left = Setup::new(1, by_tcp(), &book);
    // Nobody listens there: the other end makes no connection of its own.
    left.reached_at = Some(Address::Tcp(([127, 0, 0, 1], 1).into()));
    let left = left.start().await;
    let right = Setup::new(2, by_tcp(), &book).start().await;
    let between = Proxy::start(right.tcp_address());
    let mut card = right.card.clone();
    card.addresses = vec![Address::Tcp(between.address)];
    let link = left.agent.links.link_or_new(right.node).expect("a link");
    link.state().card = Some(card);
    left.send(&right, control(1));
    eventually("it was tried more than once", || link.state().failures > 2).await;
    assert_eq!(right.received_count(), 0);
    link.state().card = Some(right.card.clone());
    eventually("it arrives where it belongs", || {
        right.received_count() == 1
    })
    .await;
    for side in [left, right] {
        side.close().await;
    }
}

/// HS-5: whoever cannot get in keeps nobody else out.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn other_users_take_no_place_of_those_who_may_connect() {
    use std::os::unix::net::UnixStream;

    let book: Arc<fixture::Book> = Arc::default();
    let mut setup = Setup::new(1, BindOptions::default(), &book);
    setup.config.max_handshakes = 1;
    let worker = setup.start().await;
    let name = worker.card.addresses.iter().find_map(|at| match at {
        Address::Unix(name) => Some(name.clone()),
        _ => None,
    });
    let name = name.expect("a Unix socket");
    let mut slow = Stream::connect(&Address::Unix(name.clone()), None)
        .await
        .expect("a stream");
    let address = abstract_address(&name);
    let connect = || UnixStream::connect_addr(&address).expect("a connection");
    let Some(strangers) = as_nobody(|| (0..20).map(|_| connect()).collect::<Vec<_>>()) else {
        return eprintln!("not tested: this process cannot become another user's");
    };
    // The last of them is heard after all others.
    let last = strangers.last().expect("one of them");
    let last = last.try_clone().expect("a socket");
    last.set_nonblocking(true).expect("a socket");
    let last = tokio::net::UnixStream::from_std(last).expect("a socket");
    let key = key(b"");
    let greeting = greeting(&worker);
    let mut last = Stream::unix(last).expect("a stream");
    let mut last = Conversation::new(&mut last, &key);
    last.send_opening(&greeting).await.expect("sent");
    let reply: Reply = last.receive_opening().await.expect("a reply");
    assert!(matches!(reply, Reply::Refused(Refusal::User)), "{reply:?}");

    let mut slow = Conversation::new(&mut slow, &key);
    slow.send_opening(&greeting).await.expect("sent");
    let reply: Reply = slow.receive_opening().await.expect("a reply");
    assert!(matches!(reply, Reply::Challenge(_)), "{reply:?}");
}

/// HS-5: a superuser who looks on does so wherever it likes, if it has no token to prove to whoever is there.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_superuser_looks_into_the_workers_of_all_users() {
    use std::io::Read as _;
    use std::os::unix::net::UnixListener;

    let name = format!("@farref-test-{:016x}", fastrand::u64(..));
    let address = abstract_address(&name);
    let Some(listener) = as_nobody(|| UnixListener::bind_addr(&address).expect("a listener"))
    else {
        return eprintln!("not tested: this process cannot become another user's");
    };
    let address = Address::Unix(name);
    for (token, is_spoken_to) in [(&b""[..], true), (TOKEN, false)] {
        let heard = std::thread::spawn({
            let listener = listener.try_clone().expect("a socket");
            move || {
                let (mut heard, _) = listener.accept().expect("it connects");
                // It hears all that is said, and says nothing.
                heard.shutdown(std::net::Shutdown::Write).expect("a socket");
                let mut bytes = Vec::new();
                heard.read_to_end(&mut bytes).expect("the end");
                bytes
            }
        });
        let looked = ObserverConnection::open(&address, token, None, None).await;
        let is_other = matches!(looked, Err(ObserverConnectionError::User));
        assert_eq!(is_other, !is_spoken_to);
        let heard = heard.join().expect("no panic");
        assert_eq!(heard.starts_with(b"farref"), is_spoken_to);
    }
}
