//! Filling memory by two threads.

use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};
use std::thread;

use bytes::BufMut;

/// Appends `length` bytes to `into`, which has room for them in one piece, by two threads that take pieces of them in
/// turn: each is filled by `fill`, which is told where it begins. If there is no second thread, or it gets no time, the
/// first one fills them all. None if there is no such room; nothing is done then.
pub(crate) fn fill_by_two<E: Send>(
    into: &mut impl BufMut,
    length: usize,
    piece: usize,
    fill: impl Fn(usize, &mut &mut [MaybeUninit<u8>]) -> Result<(), E> + Sync,
) -> Option<Result<(), E>> {
    // SAFETY: nothing is written to it but bytes, by `fill`, by way of `BufMut`.
    let room = unsafe { into.chunk_mut().as_uninit_slice_mut() };
    let room = room.get_mut(..length)?;
    let pieces = Mutex::new(room.chunks_mut(piece).enumerate());
    // All pieces that one thread gets; the error of one of them.
    let work = || -> Result<(), E> {
        loop {
            let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, mut room)) = next else {
                return Ok(());
            };
            fill(index * piece, &mut room)?;
            assert_eq!(room.remaining_mut(), 0, "a piece is not filled");
        }
    };
    let filled = thread::scope(|scope| {
        let builder = thread::Builder::new().name("farref-reading".to_owned());
        let second = builder.spawn_scoped(scope, work);
        let first = work();
        let second = second.map_or(Ok(()), |second| match second.join() {
            Ok(filled) => filled,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        first.and(second)
    });
    if filled.is_ok() {
        // SAFETY: all pieces were taken, and each was filled by whoever took it, or there would be an error or a panic.
        unsafe { into.advance_mut(length) };
    }
    Some(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pieces_are_filled_once_whoever_does_it() {
        for length in [0, 1, 99, 100, 101, 12_345] {
            let mut bytes = Vec::with_capacity(length + 10);
            bytes.put_slice(b"before");
            bytes.reserve_exact(length);
            let fill = |from: usize, room: &mut &mut [MaybeUninit<u8>]| {
                for at in 0..room.remaining_mut() {
                    room.put_u8((from + at) as u8);
                }
                Ok::<_, ()>(())
            };
            assert_eq!(fill_by_two(&mut bytes, length, 100, fill), Some(Ok(())));
            assert!(bytes.starts_with(b"before") && bytes.len() == 6 + length);
            let is_right = |(at, byte): (usize, &u8)| *byte == at as u8;
            assert!(bytes[6..].iter().enumerate().all(is_right));
        }
    }

    #[test]
    fn nothing_counts_if_one_piece_fails_or_there_is_no_room() {
        let mut bytes = Vec::with_capacity(1000);
        let fill = |from: usize, room: &mut &mut [MaybeUninit<u8>]| {
            room.put_bytes(1, room.remaining_mut());
            if from == 700 {
                Err("on purpose")
            } else {
                Ok(())
            }
        };
        assert_eq!(
            fill_by_two(&mut bytes, 1000, 100, fill),
            Some(Err("on purpose"))
        );
        assert!(bytes.is_empty());
        let too_long = bytes.capacity() + 1;
        assert_eq!(fill_by_two(&mut bytes, too_long, 100, fill), None);
    }
}
