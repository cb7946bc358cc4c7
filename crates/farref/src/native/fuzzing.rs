//! What `crate::testing::fuzzing` needs of this module's inside.

use bytes::BufMut;
use ring::hmac;

use super::frame::{Decoder, FrameError, Limits, NamedPiece, PieceSource, Recycler, Space};
use super::handshake::{Claim, Conversation, Greeting, Reply};
use super::inquiry::hear_anything;
use super::transport::{MemoryNetwork, Stream};

/// Bytes that come on a stream after the handshake: no panic, and the same frames however the bytes
/// were split (FR-3), whether or not the peer may name its memory.
pub fn frames(data: &[u8]) {
    let Some((&split, data)) = data.split_first() else {
        return;
    };
    for may_name in [false, true] {
        let whole = decode(data, usize::MAX, may_name);
        let split = decode(data, usize::from(split).max(1), may_name);
        assert_eq!(whole, split, "what is read depends on how it came");
    }
}

fn decode(mut data: &[u8], chunk: usize, may_name: bool) -> (Vec<String>, Option<String>) {
    let limits = Limits {
        message_bytes: 1 << 20,
        head_bytes: 1 << 16,
        parts: 64,
    };
    let mut decoder = Decoder::new(limits, Recycler::new(1 << 20, None));
    if may_name {
        decoder.permit_names();
    }
    let mut seen = Vec::new();
    loop {
        let next = decoder.next();
        if let Some(pieces) = decoder.take_named() {
            // The peer's memory is its address, over and over.
            let read = |NamedPiece {
                            source,
                            mut filling,
                        }: NamedPiece| {
                let fill = |_, count, into: &mut dyn BufMut| -> Result<(), FrameError> {
                    if let PieceSource::Memory(address) = source {
                        into.put_bytes(address as u8, count);
                    }
                    Ok(())
                };
                while !matches!(filling.read_with(chunk, fill), Ok(0) | Err(_)) {}
                filling
            };
            decoder.put_named(pieces.into_iter().map(read).collect());
            continue;
        }
        match next {
            Ok(Some(received)) => seen.push(format!("{received:?}")),
            Ok(None) if data.is_empty() => return (seen, None),
            Ok(None) => {
                let mut put = |space: &mut dyn BufMut| {
                    let size = chunk.min(data.len()).min(space.remaining_mut());
                    let (now, later) = data.split_at(size);
                    space.put_slice(now);
                    data = later;
                };
                match decoder.space() {
                    Space::Buffer(buffer) => put(buffer),
                    Space::Piece(mut piece) => put(&mut piece),
                }
            }
            Err(error) => return (seen, Some(error.to_string())),
        }
    }
}

fn block_on(hearing: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let Ok(runtime) = runtime else {
        panic!("the fuzzer has no runtime");
    };
    runtime.block_on(hearing);
}

/// A stream on which these bytes come, and no more. `None` if they do not fit into it.
async fn stream_of(data: &[u8]) -> Option<Stream> {
    let network = MemoryNetwork::new();
    let Ok(mut listener) = network.bind("a") else {
        panic!("the fuzzer has no network");
    };
    let Ok(other) = network.connect("b", "a").await else {
        panic!("the fuzzer has no network");
    };
    let other = Stream::memory(other);
    let stream = Stream::memory(listener.accept().await);
    other.write.write_all(data).await.ok()?;
    Some(stream)
}

/// Bytes that come on a fresh stream, to either end of a handshake.
pub fn handshake(data: &[u8]) {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"");
    block_on(async {
        for accepts in [true, false] {
            let Some(mut stream) = stream_of(data).await else {
                continue;
            };
            let mut conversation = Conversation::new(&mut stream, &key);
            if accepts {
                if conversation.receive_opening::<Greeting>().await.is_ok() {
                    drop(conversation.receive_claim::<Claim>().await);
                }
            } else if conversation.receive_opening::<Reply>().await.is_ok() {
                drop(conversation.receive_verdict().await);
            }
        }
    });
}

/// Bytes that come after an observer's handshake, to either end.
pub fn observing(data: &[u8]) {
    block_on(async {
        for observed in [true, false] {
            let Some(mut stream) = stream_of(data).await else {
                continue;
            };
            hear_anything(&mut stream, observed).await;
        }
    });
}
