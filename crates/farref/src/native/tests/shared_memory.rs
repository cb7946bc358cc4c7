//! PM-1 to PM-4: large parts are read out of the sender's memory, and whatever a peer says of its memory, it harms only
//! itself.
#![cfg(target_os = "linux")]

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use farref_proto::{Acks, Frame, Hello, Lane, SESSION_VERSION, Time};
use farref_testkit::TEST_TIMEOUT;
use ring::hmac;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::fixture::{GROUP, Setup, with_parts};
use super::*;
use crate::codec::{Part, Source, Width};
use crate::native::frame::{
    Batch, DecodedFrame, Decoder, Limits, MemoryFrame, Packet, Recycler, Space,
};
use crate::native::handshake::{
    Claim, Conversation, Greeting, Purpose, Reply, SessionHello, Verdict, connection_id,
};
use crate::native::transport::{OwnMemory, Stream};
use crate::rendezvous::Address;
use crate::support::lock::lock;

pub(super) const MIB: usize = 1 << 20;

/// Two workers that talk by Unix sockets; whether either is willing to share its memory.
pub(super) async fn pair(willing: [bool; 2]) -> [Side; 2] {
    let book = Arc::default();
    let side = |worker: u32| {
        let mut setup = Setup::new(worker, BindOptions::default(), &book);
        setup.config.shared_memory = willing[worker as usize - 1];
        setup.config.memory_answer = NEVER;
        setup.start()
    };
    [side(1).await, side(2).await]
}

/// Longer than any test takes.
pub(super) const NEVER: Duration = Duration::from_secs(3600);

/// How many bytes one has read out of the other's memory.
pub(super) fn read_by(reader: &Side, of: &Side) -> u64 {
    let link = reader.link_to(of);
    link.map_or(0, |link| link.bytes_from_memory)
}

/// Sends large parts until one is read out of the sender's memory: what one end may is for the other to say. Returns
/// how many messages that took.
pub(super) async fn acquaint(from: &Side, to: &Side) -> usize {
    let before = read_by(to, from);
    let deadline = Instant::now() + TEST_TIMEOUT;
    for sent in 1.. {
        assert!(Instant::now() < deadline, "memory is never read");
        let received = to.received_count();
        from.send(to, large(0));
        eventually("it arrives", || to.received_count() > received).await;
        if read_by(to, from) > before {
            return sent;
        }
        // It takes a thread to find that it can be.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!()
}

/// Numbers that no shift leaves as they are.
pub(super) fn numbers(count: usize, seed: u64) -> Vec<u64> {
    let mix = |index: u64| (seed + index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..count as u64).map(mix).collect()
}

/// A numbered message with a megabyte that depends on the number.
pub(super) fn large(number: u64) -> Message {
    let part = Part::from_vec(numbers(MIB / 8, number));
    with_parts(number, Bytes::new(), vec![part])
}

pub(super) fn parts(message: Message) -> Vec<Part> {
    match message {
        Message::Call(call) => call.arguments.parts,
        other => panic!("not a call: {other:?}"),
    }
}

/// Memory of the program's, which may say where it is.
struct Kept {
    bytes: Vec<u8>,
    address: Option<usize>,
}

impl Kept {
    fn part(bytes: Vec<u8>, says_where: bool) -> Part {
        let address = says_where.then(|| bytes.as_ptr().addr());
        Part::from_source(Arc::new(Self { bytes, address }))
    }

    /// Says that it is somewhere else.
    fn lying(bytes: Vec<u8>, address: usize) -> Part {
        let address = Some(address);
        Part::from_source(Arc::new(Self { bytes, address }))
    }
}

impl Source for Kept {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn width(&self) -> Width {
        Width::One
    }

    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        look(&self.bytes[range]);
    }

    fn address(&self) -> Option<usize> {
        self.address
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_large_part_is_read_out_of_the_senders_memory() {
    let [left, right] = pair([true; 2]).await;
    acquaint(&left, &right).await;
    let bytes: Vec<u8> = bytemuck::cast_slice(&numbers(5 * MIB / 8, 7)).to_vec();
    let floats: Vec<f32> = (0..MIB / 4).map(|index| index as f32).collect();
    let sent = vec![
        Part::from(Bytes::from(bytes.clone())),
        Part::from(Bytes::from(bytes.clone()).slice(1..3 * MIB)),
        Part::from_vec(floats.clone()),
        Kept::part(bytes.clone(), true),
        // One that does not say where it is, and one that is not worth it.
        Kept::part(bytes.clone(), false),
        Part::from(vec![3; 1000]),
    ];
    let named: usize = sent[..4].iter().map(Part::len).sum();
    let (before, received) = (read_by(&right, &left), right.received_count());
    left.send(&right, with_parts(1, Bytes::from_static(b"body"), sent));
    eventually("it arrives", || right.received_count() > received).await;
    assert_eq!(read_by(&right, &left) - before, named as u64);
    let arrived = parts(right.received().pop().expect("it arrived"));
    let [a, b, c, d, e, f] = arrived.try_into().expect("six parts");
    assert_eq!(a.into_bytes().expect("bytes"), bytes);
    assert_eq!(b.into_bytes().expect("bytes"), bytes[1..3 * MIB]);
    assert_eq!(c.width(), Width::Four);
    assert_eq!(c.into_vec::<f32>().expect("floats"), floats);
    assert_eq!(d.into_bytes().expect("bytes"), bytes);
    assert_eq!(e.into_bytes().expect("bytes"), bytes);
    assert_eq!(f.into_bytes().expect("bytes"), [3; 1000][..]);
    // Neither end blames the other, and both count what was not sent as sent.
    let sent = left.link_to(&right).expect("a link").bytes_sent;
    assert!(sent > named as u64);
    assert!(lock(&left.inbound.misbehaved).is_empty());
    assert!(lock(&right.inbound.misbehaved).is_empty());
}

/// PM-6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_large_part_of_a_connection_goes_the_way_of_all_others() {
    let [left, right] = pair([true; 2]).await;
    for number in 0..3 {
        left.send(&right, large(number));
        eventually("it arrives", || right.received_count() as u64 > number).await;
        assert_eq!(read_by(&right, &left), (number + 1) * MIB as u64);
    }
}

/// PM-6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_answer_an_offer_is_not_waited_for() {
    let book = Arc::default();
    let right = Setup::new(1, BindOptions::default(), &book).start().await;
    let mut intruder = Intruder::new();
    intruder.connect(&right, true).await;
    let part = Part::from(vec![1; MIB]);
    let message = with_parts(1, Bytes::new(), vec![part]);
    right.agent.enqueue(intruder.node, message);
    right.agent.flush(intruder.node);
    loop {
        match intruder.hear().await {
            Some(DecodedFrame::Session(Frame::Data { .. })) => break,
            Some(_) => {}
            None => panic!("it is hung up on"),
        }
    }
}

/// PM-6: whoever does not read the other's memory says so, or nothing would ever come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_go_through_the_socket_unless_both_ends_are_willing() {
    for willing in [[true, false], [false, true], [false, false]] {
        let [left, right] = pair(willing).await;
        for number in 0..20 {
            left.send(&right, large(number));
            right.send(&left, large(number));
            eventually("both arrive", || {
                left.received_count() > number as usize && right.received_count() > number as usize
            })
            .await;
        }
        for (side, other) in [(&left, &right), (&right, &left)] {
            assert_eq!(side.received_on(Lane::Bulk), Vec::from_iter(0..20));
            assert_eq!(read_by(side, other), 0, "{willing:?}");
            assert_eq!(side.link_to(other).expect("a link").connections, 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_read_in_both_directions_at_once() {
    let [left, right] = pair([true; 2]).await;
    acquaint(&left, &right).await;
    acquaint(&right, &left).await;
    let before = [left.received_count(), right.received_count()];
    for number in 0..50 {
        left.send(&right, large(number));
        right.send(&left, large(number));
    }
    eventually("all arrive", || {
        [
            left.received_count() - before[0],
            right.received_count() - before[1],
        ] == [50; 2]
    })
    .await;
    for (side, before) in [(&left, before[0]), (&right, before[1])] {
        for (number, message) in (0..).zip(side.received().drain(before..)) {
            let [part] = parts(message).try_into().expect("one part");
            assert_eq!(part.into_vec(), Ok(numbers(MIB / 8, number)));
        }
    }
}

/// D2: what was not acknowledged is sent again on another connection, as that one allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_named_is_named_again_on_another_connection() {
    let [left, right] = pair([true; 2]).await;
    let first = acquaint(&left, &right).await;
    let link = left.agent.links.link(right.node).expect("a link");
    for number in 0..200 {
        left.send(&right, large(number));
        if number % 10 == 5 {
            // In the middle of whatever is going on.
            for stream in link.streams() {
                stream.send.write.hang_up();
            }
        }
        if number % 50 == 0 {
            caught_up(&right, first, number).await;
        }
    }
    eventually("all arrive", || right.received_count() == first + 200).await;
    for (number, message) in (0..200).zip(right.received().drain(first..)) {
        let [part] = parts(message).try_into().expect("one part");
        assert_eq!(part.into_vec(), Ok(numbers(MIB / 8, number)), "{number}");
    }
    assert!(left.link_to(&right).expect("a link").connections > 1);
    assert!(lock(&right.inbound.misbehaved).is_empty());
    // And in the end memory is read again.
    acquaint(&left, &right).await;
}

/// Lets the receiver catch up.
async fn caught_up(right: &Side, first: usize, number: u64) {
    eventually("it arrives", || {
        right.received_count() > first + number as usize
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tcp_and_within_the_process_nothing_is_named() {
    let network = MemoryNetwork::new();
    for [left, right] in [
        Side::socket_pair(false).await,
        Side::memory_pair(&network).await,
    ] {
        for number in 0..20 {
            left.send(&right, large(number));
        }
        eventually("all arrive", || right.received_count() == 20).await;
        assert_eq!(read_by(&right, &left), 0);
    }
}

#[tokio::test]
async fn nothing_is_left_of_parts_that_were_read() {
    let [left, right] = pair([true; 2]).await;
    acquaint(&left, &right).await;
    let part = Bytes::from(vec![1; 3 * MIB]);
    let before = read_by(&right, &left);
    left.send(&right, answerable(1, Bytes::new(), vec![part.clone()]));
    eventually("it is read", || read_by(&right, &left) > before).await;
    // As soon as it is acknowledged.
    eventually("the buffer is let go", || part.is_unique()).await;
    for side in [&left, &right] {
        side.close().await;
        assert_eq!(side.agent.links().len(), 0);
        eventually("no thread has it", || {
            Arc::strong_count(&side.agent.links.endpoint) == 1
        })
        .await;
    }
}

/// One who speaks the wire, and does what no worker does.
pub(super) struct Intruder {
    pub(super) node: NodeId,
    epoch: u64,
    main: Option<Stream>,
    bulk: Option<Stream>,
    decoder: Decoder,
    seq: u64,
    /// What it has sent, which may be read later.
    kept: Vec<Part>,
}

impl Intruder {
    pub(super) fn new() -> Self {
        Self {
            node: NodeId::new(9, 1),
            epoch: 0,
            main: None,
            bulk: None,
            decoder: decoder(),
            seq: 0,
            kept: Vec::new(),
        }
    }

    /// Makes a connection with both its streams.
    pub(super) async fn connect(&mut self, to: &Side, unix: bool) {
        self.epoch += 1000;
        let hello = SessionHello {
            epoch: self.epoch,
            session: Hello {
                version: SESSION_VERSION,
                group: GROUP,
                from: self.node,
                to: to.node,
                expected: [0; 3],
            },
        };
        let (main, id, verdict) = self.shake_hands(to, unix, Purpose::Main(hello)).await;
        let Verdict::Main { hello, .. } = verdict else {
            panic!("{verdict:?}");
        };
        self.seq = hello.session.expected[Lane::Bulk.index()];
        let (bulk, _, verdict) = self.shake_hands(to, unix, Purpose::Bulk(id)).await;
        assert!(matches!(verdict, Verdict::Bulk), "{verdict:?}");
        self.main = Some(main);
        self.bulk = Some(bulk);
        self.decoder = decoder();
    }

    async fn shake_hands(&self, to: &Side, unix: bool, purpose: Purpose) -> (Stream, u64, Verdict) {
        let is_wanted = |address: &&Address| matches!(address, Address::Unix(_)) == unix;
        let address = to.card.addresses.iter().find(is_wanted);
        let address = address.expect("it listens there");
        let mut stream = Stream::connect(address, None).await.expect("a stream");
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"");
        let mut conversation = Conversation::new(&mut stream, &key);
        let greeting = Greeting::Worker {
            group: GROUP,
            to: to.node,
            nonce: [7; 16],
        };
        conversation.send_opening(&greeting).await.expect("said");
        let reply: Reply = conversation.receive_opening().await.expect("a reply");
        let Reply::Challenge(nonce) = reply else {
            panic!("{reply:?}");
        };
        let mut card = to.card.clone();
        card.node = self.node;
        card.addresses.clear();
        let claim = Claim {
            card,
            max_calls: 1,
            purpose,
        };
        conversation.send_claim(&claim).await.expect("said");
        let (verdict, proved) = conversation.receive_verdict().await.expect("a verdict");
        assert!(proved);
        (stream, connection_id(&nonce), verdict)
    }

    pub(super) fn bulk(&mut self) -> &mut Stream {
        self.bulk.as_mut().expect("it is connected")
    }

    async fn write(&mut self, mut batch: Batch) {
        let bytes = batch.written();
        // It may be cut off before it has said all.
        let _ = self.bulk().write.write_all(&bytes).await;
    }

    pub(super) async fn say(&mut self, frame: MemoryFrame) {
        let mut batch = Batch::default();
        batch.push_memory(frame);
        self.write(batch).await;
    }

    pub(super) async fn say_on_main(&mut self, frame: MemoryFrame) {
        let mut batch = Batch::default();
        batch.push_memory(frame);
        let main = self.main.as_mut().expect("it is connected");
        main.write.write_all(&batch.written()).await.expect("said");
    }

    /// Sends a call with one part, whose address stands in its place if it is named.
    pub(super) async fn call(&mut self, number: u64, part: Part, named: bool, to: &Side) {
        self.call_with(number, vec![part], named, to).await;
    }

    async fn call_with(&mut self, number: u64, parts: Vec<Part>, named: bool, to: &Side) {
        self.kept.extend(parts.iter().cloned());
        let mut batch = self.batch(number, parts, to);
        batch.encode(Time(0), named);
        self.write(batch).await;
    }

    /// The bytes of a call with these parts, of which those in regions are said to be there.
    pub(super) fn passed(&mut self, number: u64, parts: Vec<Part>, to: &Side) -> Vec<u8> {
        let mut batch = self.batch(number, parts, to);
        batch.permit_regions(true, 0);
        batch.encode(Time(0), false);
        batch.written()
    }

    fn batch(&mut self, number: u64, parts: Vec<Part>, to: &Side) -> Batch {
        let mut message = with_parts(number, Bytes::new(), parts);
        let limits = &to.agent.links.endpoint.limits;
        let packet = Packet::new(&mut message, || Time(0), limits).expect("within the limits");
        let mut batch = Batch::default();
        batch.push(Frame::Data {
            lane: Lane::Bulk,
            seq: self.seq,
            acks: Acks([0; 3]),
            payload: packet,
        });
        self.seq += 1;
        batch
    }

    /// The next thing that is said to it on the stream for bulk data. None if it is hung up on.
    async fn hear(&mut self) -> Option<DecodedFrame> {
        loop {
            if let Some(frame) = self.decoder.next().expect("a worker speaks correctly") {
                return Some(frame);
            }
            if !self.read().await {
                return None;
            }
        }
    }

    /// Waits until it is given the address of something.
    async fn is_named_something(&mut self) {
        loop {
            while let Some(frame) = self.decoder.next().expect("a worker speaks correctly") {
                let is_data = matches!(frame, DecodedFrame::Session(Frame::Data { .. }));
                assert!(!is_data, "it is sent");
            }
            if self.decoder.take_named().is_some() {
                return;
            }
            assert!(self.read().await, "it is hung up on");
        }
    }

    /// Says whether there was something to read.
    async fn read(&mut self) -> bool {
        let bulk = self.bulk.as_mut().expect("it is connected");
        let read = match self.decoder.space() {
            Space::Buffer(buffer) => bulk.read.read_buf(buffer).await,
            Space::Piece(mut piece) => bulk.read.read_buf(&mut piece).await,
        };
        matches!(read, Ok(1..))
    }

    /// Offers what is its own, in truth, and hears that it may name it. The other end's own offer comes before.
    async fn offer(&mut self, memory: &OwnMemory) {
        self.say(MemoryFrame::Offer(memory.claim())).await;
        self.hears(&MemoryFrame::MayName).await;
    }

    /// Waits until this is said to it.
    async fn hears(&mut self, said: &MemoryFrame) {
        loop {
            match self.hear().await {
                Some(DecodedFrame::Memory(frame)) if frame == *said => return,
                Some(_) => {}
                None => panic!("it is hung up on"),
            }
        }
    }

    /// Whether it is hung up on before it hears that it may name anything.
    pub(super) async fn is_hung_up_on(&mut self) -> bool {
        while let Some(frame) = self.hear().await {
            if matches!(frame, DecodedFrame::Memory(MemoryFrame::MayName)) {
                return false;
            }
        }
        true
    }
}

fn decoder() -> Decoder {
    let limits = Limits {
        message_bytes: 64 << 20,
        head_bytes: 1 << 16,
        parts: 16,
    };
    let recycler = Recycler::new(0, None);
    let mut decoder = Decoder::new(limits, recycler);
    decoder.permit_names();
    decoder
}

/// A worker, and somebody who has a good link to it and is disturbed by nothing.
pub(super) async fn watched() -> [Side; 2] {
    let [right, bystander] = pair([true; 2]).await;
    acquaint(&bystander, &right).await;
    [right, bystander]
}

pub(super) async fn is_undisturbed(bystander: &Side, right: &Side) {
    let (before, received) = (read_by(right, bystander), right.received_count());
    bystander.send(right, large(1));
    eventually("it arrives", || right.received_count() > received).await;
    assert_eq!(read_by(right, bystander) - before, MIB as u64);
    assert_eq!(bystander.link_to(right).expect("a link").connections, 1);
}

/// FR-5: whoever does what no worker does is cut off, over any kind of socket.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_names_or_reads_memory_uninvited_is_cut_off() {
    type Fault = fn(&mut Intruder) -> Option<MemoryFrame>;
    let faults: [(&str, bool, Fault); 6] = [
        ("names", true, |_| None),
        ("names", false, |_| None),
        ("was not offered", false, |_| Some(MemoryFrame::MayName)),
        ("was not offered", false, |_| Some(MemoryFrame::Declined)),
        ("was not offered", false, |_| Some(MemoryFrame::Reading)),
        // Offered it was, but it has not said that it reads.
        ("was not offered", true, |_| Some(MemoryFrame::Reading)),
    ];
    for (reason, unix, fault) in faults {
        let [right, bystander] = watched().await;
        let mut intruder = Intruder::new();
        intruder.connect(&right, unix).await;
        match fault(&mut intruder) {
            Some(frame) => intruder.say(frame).await,
            None => {
                let part = Part::from(vec![1; MIB]);
                intruder.call(1, part, true, &right).await;
            }
        }
        assert!(intruder.is_hung_up_on().await);
        eventually("it is blamed", || {
            let misbehaved = lock(&right.inbound.misbehaved);
            misbehaved
                .iter()
                .any(|(node, why)| *node == intruder.node && why.contains(reason))
        })
        .await;
        is_undisturbed(&bystander, &right).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_offered_once_and_where_it_belongs() {
    let [right, bystander] = watched().await;
    let memory = OwnMemory::new().expect("Linux");
    let mut intruder = Intruder::new();
    intruder.connect(&right, true).await;
    intruder.offer(&memory).await;
    intruder.say(MemoryFrame::Offer(memory.claim())).await;
    assert!(intruder.is_hung_up_on().await);
    eventually("it is blamed", || {
        lock(&right.inbound.misbehaved).len() == 1
    })
    .await;
    is_undisturbed(&bystander, &right).await;
}

/// Over TCP an offer says nothing, and is no fault: the other end may be a Unix socket of somebody in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offer_over_tcp_is_not_taken() {
    let [right, _bystander] = watched().await;
    let memory = OwnMemory::new().expect("Linux");
    let mut intruder = Intruder::new();
    intruder.connect(&right, false).await;
    intruder.say(MemoryFrame::Offer(memory.claim())).await;
    let received = right.received_count();
    intruder
        .call(1, Part::from(vec![1; MIB]), false, &right)
        .await;
    eventually("it goes through the socket", || {
        right.received_count() > received
    })
    .await;
    assert!(lock(&right.inbound.misbehaved).is_empty());
    // That would have been said before it was read.
    intruder
        .call(2, Part::from(vec![1; MIB]), true, &right)
        .await;
    assert!(intruder.is_hung_up_on().await, "nothing may be named");
}

/// SH-3: a beacon that is not as it is said to be proves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lies_about_its_memory_has_to_use_the_socket() {
    let (memory, other) = (OwnMemory::new(), OwnMemory::new());
    let (memory, other) = (memory.expect("Linux"), other.expect("Linux"));
    let encoded = |memory: &OwnMemory| postcard::to_allocvec(&memory.claim()).expect("encodes");
    // The content of one at the address of another, and at one where nothing is.
    let mut wrong = encoded(&memory);
    wrong.splice(32.., encoded(&other).split_off(32));
    let mut nowhere = encoded(&memory);
    nowhere.splice(32.., [8]);
    for claim in [wrong, nowhere] {
        let [right, bystander] = watched().await;
        let mut intruder = Intruder::new();
        intruder.connect(&right, true).await;
        let claim = postcard::from_bytes(&claim).expect("a claim");
        intruder.say(MemoryFrame::Offer(claim)).await;
        intruder.hears(&MemoryFrame::Declined).await;
        let received = right.received_count();
        for number in 0..5 {
            let part = Part::from(vec![1; MIB]);
            intruder.call(number, part, false, &right).await;
        }
        eventually("they go through the socket", || {
            right.received_count() == received + 5
        })
        .await;
        assert!(lock(&right.inbound.misbehaved).is_empty());
        intruder
            .call(6, Part::from(vec![1; MIB]), true, &right)
            .await;
        assert!(intruder.is_hung_up_on().await, "nothing may be named");
        is_undisturbed(&bystander, &right).await;
    }
}

/// SE-7: while its memory is read a sender has nothing to write, and must not take the connection for stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_for_long_says_so() {
    let [right, _bystander] = watched().await;
    let memory = OwnMemory::new().expect("Linux");
    let mut intruder = Intruder::new();
    intruder.connect(&right, true).await;
    intruder.offer(&memory).await;
    // Of one large part, and of many that are none by themselves.
    for (size, count) in [(256 * MIB, 1), (2 * MIB, 128)] {
        let part = Part::from(Bytes::from(vec![0; size]));
        let received = right.received_count();
        intruder.call_with(1, vec![part; count], true, &right).await;
        intruder.hears(&MemoryFrame::Reading).await;
        eventually("it arrives", || right.received_count() > received).await;
        lock(&right.inbound.received).pop();
    }
}

/// PM-4: it may be no fault: there is memory that no other process can read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_cannot_be_read_ends_the_connection_and_is_not_tried_again() {
    let memory = OwnMemory::new().expect("Linux");
    for nowhere in [8, usize::MAX - 100, usize::MAX / 2 + 1] {
        let [right, bystander] = watched().await;
        let mut intruder = Intruder::new();
        intruder.connect(&right, true).await;
        intruder.offer(&memory).await;
        // What can be read is.
        let content = vec![5; 2 * MIB];
        let received = right.received_count();
        intruder
            .call(1, Kept::part(content.clone(), true), true, &right)
            .await;
        eventually("it is read", || right.received_count() > received).await;
        let part = Kept::lying(content.clone(), nowhere);
        intruder.call(2, part, true, &right).await;
        assert!(intruder.is_hung_up_on().await);
        assert!(lock(&right.inbound.misbehaved).is_empty());
        // On another connection everything goes through the socket.
        intruder.connect(&right, true).await;
        intruder.say(MemoryFrame::Offer(memory.claim())).await;
        let part = Part::from(content.clone());
        intruder.call(2, part, false, &right).await;
        eventually("it arrives", || right.received_count() == received + 2).await;
        let part = Kept::part(content, true);
        intruder.call(3, part, true, &right).await;
        assert!(intruder.is_hung_up_on().await, "nothing may be named");
        is_undisturbed(&bystander, &right).await;
    }
}

/// PM-3: what a sender gives back without knowing that it was read cannot be read any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_hangs_up_before_it_gives_memory_back() {
    /// Looks at the socket of whoever might still read it.
    struct Watched(Vec<u8>, Arc<OnceLock<bool>>, OwnedFd);

    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            let mut socket = [PollFd::new(&self.2, PollFlags::empty())];
            let hung_up = poll(&mut socket, Some(&Timespec::default())) == Ok(1);
            let _ = self.1.set(hung_up);
        }
    }

    for dies in [true, false] {
        let [left, bystander] = watched().await;
        let mut intruder = Intruder::new();
        intruder.connect(&left, true).await;
        intruder.say(MemoryFrame::MayName).await;
        // So that it is heard before anything is sent: a message that follows it has come.
        let received = left.received_count();
        intruder
            .call(1, Part::from(vec![1; MIB]), false, &left)
            .await;
        eventually("it is heard", || left.received_count() > received).await;

        let hung_up = Arc::new(OnceLock::new());
        let socket = intruder.bulk().write.socket().expect("a socket");
        let socket = socket.as_fd().try_clone_to_owned().expect("a descriptor");
        let watched = Watched(vec![1; MIB], Arc::clone(&hung_up), socket);
        let part = Part::from(Bytes::from_owner(watched));
        left.agent
            .enqueue(intruder.node, with_parts(1, Bytes::new(), vec![part]));
        left.agent.flush(intruder.node);
        // It is named, and never acknowledged.
        intruder.is_named_something().await;
        assert_eq!(hung_up.get(), None, "it is still there to be read");
        if dies {
            left.agent.forget(intruder.node, Departure::Died);
        } else {
            left.agent.close(Duration::from_millis(100)).await;
        }
        eventually("it is given back", || hung_up.get().is_some()).await;
        assert_eq!(hung_up.get(), Some(&true), "before that it was hung up on");
        if dies {
            is_undisturbed(&bystander, &left).await;
        }
    }
}
