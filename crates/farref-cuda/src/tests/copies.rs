//! Copies, and the memory of the host that they need (CU-6, CU-8).

use std::time::Duration;

use super::{STREAM, allocate, until};
use crate::sys::HostBlock;
use crate::testing::{Machine, Process};
use crate::{CudaError, Download, PinnedOptions, PinnedPool, Result};

/// A download's windows are that long, and an upload's, if it has at least four of them.
const WINDOW: usize = 2 << 20;
/// The least length of one.
const LEAST_WINDOW: usize = 256 << 10;

fn pinned(process: &Process, limit: u64) -> PinnedPool {
    let options = PinnedOptions {
        limit,
        idle: Duration::from_millis(20),
        threads: 3,
    };
    PinnedPool::new(process.cuda(), 0, options).unwrap()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8)
        .collect()
}

#[allow(unsafe_code)]
fn upload(pool: &PinnedPool, source: &[u8], pointer: u64) -> Result<()> {
    // SAFETY: it is pretended memory, which is checked.
    unsafe { pool.upload(source, pointer, STREAM) }
}

#[allow(unsafe_code)]
fn download(pool: &PinnedPool, pointer: u64, bytes: usize) -> Result<Download> {
    // SAFETY: it is pretended memory, which is checked.
    unsafe { pool.download(pointer, bytes, STREAM) }
}

#[test]
fn bytes_go_up_and_come_down_whatever_their_number() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pinned(&here, 1 << 30);
        for bytes in [
            1,
            4096,
            4097,
            LEAST_WINDOW + 1,
            4 * LEAST_WINDOW + 3,
            WINDOW - 1,
            WINDOW,
            WINDOW + 1,
            5 * WINDOW + 3,
            // By two threads, three, and more windows than that.
            4 * WINDOW + 1,
            7 * WINDOW,
            10 * WINDOW + 17,
            16 * WINDOW,
            21 * WINDOW + 5,
        ] {
            let memory = allocate(&here, bytes as u64);
            let source = pattern(bytes);
            upload(&pool, &source, memory.pointer()).unwrap();
            assert!(
                here.read(memory.pointer(), bytes as u64) == source,
                "{bytes}"
            );
            let down = download(&pool, memory.pointer(), bytes).unwrap();
            assert_eq!(down.bytes(), bytes);
            assert!(down.to_vec().unwrap() == source, "{bytes}");
        }
        upload(&pool, &[], 0).unwrap();
        assert_eq!(download(&pool, 0, 0).unwrap().to_vec().unwrap(), b"");
    });
}

#[test]
fn a_look_waits_only_for_the_windows_that_it_needs_and_shows_one_piece() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pinned(&here, 1 << 30);
        let bytes = 4 * WINDOW;
        let memory = allocate(&here, bytes as u64);
        let source = pattern(bytes);
        here.write(memory.pointer(), &source);
        // Two windows, each a copy and an event.
        let work = here.hold_after(0, STREAM, 4);
        let down = download(&pool, memory.pointer(), bytes).unwrap();
        let ranges = [0..1, 0..2 * WINDOW, WINDOW - 7..WINDOW + 7, 5..5];
        for range in ranges {
            assert!(down.is_ready(range.clone()));
            let mut shown = Vec::new();
            let mut show = |bytes: &[u8]| {
                assert!(std::ptr::eq(
                    bytes.as_ptr().wrapping_sub(range.start),
                    down.address() as _
                ));
                shown.push(bytes.to_vec());
            };
            down.look(range.clone(), &mut show).unwrap();
            assert!(shown == [source[range].to_vec()]);
        }
        assert!(!down.is_ready(0..2 * WINDOW + 1));
        assert!(!down.is_ready(bytes - 1..bytes));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| down.wait_all());
            until(|| here.calls("cuEventSynchronize") > 0);
            assert!(!waits.is_finished());
            work.complete();
            waits.join().unwrap().unwrap();
        });
        assert!(down.is_ready(0..bytes));
        assert!(down.to_vec().unwrap() == source);
        #[allow(clippy::reversed_empty_ranges)]
        for wrong in [0..bytes + 1, 2..1, usize::MAX..usize::MAX] {
            let refused = down.look(wrong, &mut |_| panic!("shown"));
            assert!(
                matches!(refused, Err(CudaError::OutOfRange { .. })),
                "{refused:?}"
            );
        }
    });
}

#[test]
fn the_beginning_of_a_short_copy_is_there_before_the_rest() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pinned(&here, 1 << 30);
        let bytes = 4 * LEAST_WINDOW;
        let memory = allocate(&here, bytes as u64);
        let work = here.hold_after(0, STREAM, 2);
        let down = download(&pool, memory.pointer(), bytes).unwrap();
        assert!(down.is_ready(0..LEAST_WINDOW));
        assert!(!down.is_ready(0..LEAST_WINDOW + 1));
        work.complete();
        down.wait_all().unwrap();
    });
}

#[test]
fn who_waits_for_the_beginning_of_a_copy_learns_what_went_wrong_before_it() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pinned(&here, 1 << 30);
        let bytes = 4 * LEAST_WINDOW;
        let memory = allocate(&here, bytes as u64);
        let before = here.hold(0, STREAM);
        let down = download(&pool, memory.pointer(), bytes).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| down.wait_begun());
            until(|| here.calls("cuEventSynchronize") > 0);
            assert!(!waits.is_finished());
            before.complete();
            waits.join().unwrap().unwrap();
        });
        drop(down);
        // The rest is not waited for.
        let rest = here.hold_after(0, STREAM, 2);
        let down = download(&pool, memory.pointer(), bytes).unwrap();
        down.wait_begun().unwrap();
        assert!(!down.is_ready(0..bytes));
        rest.complete();
        drop(down);
        let down = download(&pool, memory.pointer(), bytes).unwrap();
        here.fail_next("cuEventSynchronize", 719);
        let failed = down.wait_begun();
        assert!(matches!(failed, Err(CudaError::Driver(_))), "{failed:?}");
        drop(down);
        download(&pool, 0, 0).unwrap().wait_begun().unwrap();
    });
}

#[test]
fn memory_is_not_used_again_before_its_copy_is_done() {
    // CU-8
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pinned(&here, 1 << 30);
        let memory = allocate(&here, 4096);
        here.write(memory.pointer(), &pattern(4096));
        let work = here.hold(0, STREAM);
        drop(download(&pool, memory.pointer(), 4096).unwrap());
        let mut other = pool.take(4096).unwrap();
        other.fill(7);
        assert_eq!(machine.counts().host_blocks, 2);
        work.complete();
        assert!(other.iter().all(|byte| *byte == 7));
        // Now it can be.
        let again = pool.take(4096).unwrap();
        assert_eq!(machine.counts().host_blocks, 2);
        drop((other, again));
    });
}

#[test]
fn a_source_may_change_as_soon_as_it_was_read() {
    // CU-8
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pinned(&here, 1 << 30);
        let bytes = 2 * WINDOW;
        let memory = allocate(&here, bytes as u64);
        let mut source = pattern(bytes);
        let work = here.hold(0, STREAM);
        upload(&pool, &source, memory.pointer()).unwrap();
        source.fill(0);
        work.complete();
        assert!(here.read(memory.pointer(), bytes as u64) == pattern(bytes));
    });
}

#[test]
fn an_upload_waits_when_all_its_windows_are_being_copied() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pinned(&here, 1 << 30);
        let bytes = 9 * WINDOW;
        let memory = allocate(&here, bytes as u64);
        let source = pattern(bytes);
        let work = here.hold(0, STREAM);
        std::thread::scope(|scope| {
            let up = scope.spawn(|| upload(&pool, &source, memory.pointer()));
            // Three threads, with two windows each.
            until(|| here.calls("cuEventSynchronize") >= 3);
            assert!(!up.is_finished());
            assert_eq!(machine.counts().host_blocks, 6);
            work.complete();
            up.join().unwrap().unwrap();
        });
        assert!(here.read(memory.pointer(), bytes as u64) == source);
    });
}

#[test]
#[allow(unsafe_code)]
fn a_buffer_is_copied_as_it_is() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pinned(&here, 1 << 30);
        let memory = allocate(&here, 5000);
        let mut buffer = pool.take(5000).unwrap();
        buffer.copy_from_slice(&pattern(5000));
        assert_eq!(buffer.len(), 5000);
        // SAFETY: it is pretended memory, which is checked.
        unsafe { buffer.upload(memory.pointer(), STREAM) }.unwrap();
        assert!(here.read(memory.pointer(), 5000) == pattern(5000));
        assert_eq!(machine.counts().host_blocks, 1);
    });
}

#[test]
fn no_more_is_locked_than_the_limit_and_uploads_do_without() {
    // CU-6
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pinned(&here, 64 << 10);
        let (first, second) = (pool.take(32 << 10).unwrap(), pool.take(16 << 10).unwrap());
        let refused = pool.take(17 << 10);
        assert!(
            matches!(refused, Err(CudaError::LimitReached { .. })),
            "{refused:?}"
        );
        assert!(matches!(
            pool.take(usize::MAX),
            Err(CudaError::LimitReached { .. })
        ));
        assert_eq!(pool.locked_bytes(), 48 << 10);
        let memory = allocate(&here, 1 << 20);
        let refused = download(&pool, memory.pointer(), 1 << 20);
        assert!(
            matches!(refused, Err(CudaError::LimitReached { .. })),
            "{refused:?}"
        );
        upload(&pool, &pattern(1 << 20), memory.pointer()).unwrap();
        assert!(here.read(memory.pointer(), 1 << 20) == pattern(1 << 20));
        assert_eq!(pool.locked_bytes(), 48 << 10);
        // What is kept for others makes room.
        drop((first, second));
        assert_eq!(pool.take(64 << 10).unwrap().len(), 64 << 10);
        assert_eq!(pool.locked_bytes(), 64 << 10);
    });
}

#[test]
fn what_exceeds_the_limit_by_itself_takes_nothing_from_others() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let options = PinnedOptions {
            limit: 1 << 20,
            ..PinnedOptions::default()
        };
        let pool = PinnedPool::new(here.cuda(), 0, options).unwrap();
        drop(pool.take(64 << 10).unwrap());
        let again = || {
            let refused = pool.take(2 << 20);
            assert!(
                matches!(refused, Err(CudaError::LimitReached { .. })),
                "{refused:?}"
            );
            drop(pool.take(64 << 10).unwrap());
        };
        again();
        again();
        assert_eq!(here.calls("cuMemHostRegister_v2"), 1);
    });
}

#[test]
fn what_is_idle_is_given_back_while_the_pool_stays() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let pool = pinned(&here, 1 << 30);
        for _ in 0..2 {
            drop((pool.take(1).unwrap(), pool.take(100_000).unwrap()));
            until(|| (pool.locked_bytes(), machine.counts().host_blocks) == (0, 0));
        }
    });
}

#[test]
fn a_copy_that_fails_gives_its_memory_back() {
    for call in [
        "cuMemHostRegister_v2",
        "cuEventCreate",
        "cuMemcpyDtoHAsync_v2",
        "cuEventRecord",
    ] {
        Machine::run(1, |machine| {
            let here = machine.process();
            let pool = pinned(&here, 1 << 30);
            let memory = allocate(&here, 3 * WINDOW as u64);
            for which in 0..if call == "cuMemHostRegister_v2" { 1 } else { 3 } {
                here.fail_after(call, which, 999);
                let failed = download(&pool, memory.pointer(), 3 * WINDOW);
                assert!(
                    matches!(failed, Err(CudaError::Driver(_))),
                    "{call}: {failed:?}"
                );
                drop(pool.take(3 * WINDOW).unwrap());
                // Fresh events are needed each time.
                until(|| pool.locked_bytes() == 0);
            }
        });
    }
}

#[test]
fn memory_whose_copy_nobody_can_tell_the_end_of_is_never_used_again() {
    // CU-8
    let machine = Machine::new(1);
    let here = machine.process();
    let pool = pinned(&here, 1 << 30);
    let memory = allocate(&here, 64);
    let work = here.hold(0, STREAM);
    here.fail_next("cuEventRecord", 999);
    here.fail_next("cuStreamSynchronize", 999);
    assert!(download(&pool, memory.pointer(), 64).is_err());
    drop(pool.take(64).unwrap());
    drop(pool);
    until(|| machine.counts().host_blocks <= 1);
    // The device writes to it when it gets there, and it is still there.
    work.complete();
    assert_eq!(machine.counts().host_blocks, 1);
    assert!(machine.take_faults().is_empty());
}

#[test]
fn bytes_are_neither_shown_nor_written_while_they_are_copied() {
    // CU-8
    Machine::run(1, |machine| {
        let here = machine.process();
        let memory = allocate(&here, 64);
        here.write(memory.pointer(), &pattern(64));
        let device = here.cuda().device(0).unwrap();
        let mut block = HostBlock::locked(&device, 64).unwrap();
        // The first of two parts.
        let work = here.hold_after(0, STREAM, 2);
        block
            .begin_download(memory.pointer(), 64, 32, STREAM)
            .unwrap();
        assert!(block.bytes(1).is_none() && block.bytes_mut(1).is_none());
        block.wait(1).unwrap();
        assert_eq!(block.bytes(32).unwrap(), &pattern(64)[..32]);
        assert!(block.bytes(33).is_none() && block.bytes_mut(1).is_none());
        work.complete();
        block.wait(64).unwrap();
        assert_eq!(block.bytes(64).unwrap(), pattern(64));
        assert!(block.bytes_mut(64).is_some() && block.bytes_mut(65).is_none());
    });
}
