//! Memory that a process may still use stays, whatever is said of that process (CU-1).

use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{SealFlags, fcntl_add_seals};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Pair, STREAM, allocate, export, open, until};
use crate::CudaError;
use crate::ledger::{Borrowed, Ledger, Loan, TEARDOWN, line_at};
use crate::testing::Machine;

#[test]
fn memory_stays_as_long_as_a_process_may_use_it_whatever_the_exporter_was_told() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let exported = export(&pool, &here);
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        // The group has given the reference up; the process goes on.
        drop(exported);
        assert_eq!(pool.exported_bytes(), 4);
        let other = allocate(&here, 4);
        there.write(imported.pointer(), b"mine");
        assert_eq!(here.read(other.pointer(), 4), [0; 4]);
        // Also while its last work goes on.
        let work = there.hold(0, STREAM);
        drop(imported);
        let looks = here.cuda().lingering().looks();
        until(|| here.cuda().lingering().looks() > looks + 1);
        assert_eq!(
            (pool.exported_bytes(), machine.counts().allocations),
            (4, 2)
        );
        work.complete();
        until(|| machine.counts().allocations == 1);
        assert_eq!(pool.exported_bytes(), 0);
    });
}

#[test]
fn memory_that_was_taken_stays_until_who_took_it_says_so() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let exported = export(&pool, &here);
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        let (taken, held) = imported.into_raw();
        drop((exported, opened));
        assert_eq!(machine.counts().allocations, 1);
        there.free(0, taken, STREAM);
        drop(held);
        until(|| machine.counts().allocations == 0);
        // The pool could not go before.
        drop(open(&there, &pool));
    });
}

#[test]
fn what_lingers_can_be_exported_again_and_is_the_same_to_who_has_it() {
    Machine::run(1, |machine| {
        let Pair {
            here, pool, opened, ..
        } = Pair::of(machine);
        let memory = Arc::new(allocate(&here, 4));
        let export = || {
            let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
            exported.keep(Arc::clone(&memory))
        };
        let first = export();
        let message = first.message();
        let imported = opened.import(&message, STREAM).unwrap();
        drop(first);
        let second = export();
        assert_eq!(second.message(), message);
        let again = opened.import(&message, STREAM);
        assert!(
            matches!(again, Err(CudaError::AlreadyImported)),
            "{again:?}"
        );
        drop((again, imported));
        // It is out, so that it can be imported anew.
        drop(opened.import(&message, STREAM).unwrap());
        drop(second);
        until(|| pool.exported_bytes() == 0);
        until(|| Arc::strong_count(&memory) == 1);
    });
}

#[test]
fn a_message_that_comes_when_its_memory_is_not_shared_any_more_is_refused() {
    // LE-2
    Machine::run(1, |machine| {
        let Pair {
            here, pool, opened, ..
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let late = exported.message();
        drop(exported);
        let refused = opened.import(&late, STREAM);
        assert!(matches!(refused, Err(CudaError::NotShared)), "{refused:?}");
        // Also when the place in the ledger is another one's by now.
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let refused = opened.import(&late, STREAM);
        assert!(matches!(refused, Err(CudaError::NotShared)), "{refused:?}");
        drop(refused);
        assert!(opened.import(&exported.message(), STREAM).is_ok());
    });
}

fn open_ledger(ledger: &Ledger, line: u16) -> Arc<Borrowed> {
    use std::os::fd::AsFd as _;
    Borrowed::open(&ledger.as_fd().try_clone_to_owned().unwrap(), line).unwrap()
}

#[test]
fn several_uses_of_one_process_and_of_several_are_each_waited_for() {
    // LE-1
    let ledger = Ledger::new().unwrap();
    let loan = ledger.lend().unwrap();
    let lines = [(); 2].map(|()| ledger.enlist(None).unwrap());
    assert_ne!(lines[0], lines[1]);
    let [one, other] = lines.map(|line| open_ledger(&ledger, line));
    let mut held = vec![
        one.take(loan).unwrap(),
        one.take(loan).unwrap(),
        other.take(loan).unwrap(),
    ];
    ledger.end(loan);
    drop((one, other));
    while let Some(use_of_it) = held.pop() {
        assert!(!ledger.is_unused(loan), "{} more", held.len() + 1);
        drop(use_of_it);
    }
    assert!(ledger.is_unused(loan));
}

#[test]
fn nothing_is_unused_while_a_process_that_has_used_something_is_ending() {
    // LE-3
    let ledger = Ledger::new().unwrap();
    let loan = ledger.lend().unwrap();
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let process = || {
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        Some(pidfd_open(pid, PidfdFlags::empty()).unwrap())
    };
    // It has not begun, or has said that it is finished.
    let line = ledger.enlist(process()).unwrap();
    assert!(ledger.is_unused(loan));
    drop(open_ledger(&ledger, line));
    assert!(ledger.is_unused(loan));
    // Its files are closed, and it was not said that it is finished.
    let line = ledger.enlist(process()).unwrap();
    rustix::io::pwrite(&ledger, &[1], line_at(line)).unwrap();
    assert!(!ledger.is_unused(loan));
    child.kill().unwrap();
    until(|| ledger.is_unused(loan));
    child.wait().unwrap();
}

/// Its files are closed, and it did not say that it is finished.
fn is_killed(ledger: &Ledger, line: u16, importer: Arc<Borrowed>) {
    drop(importer);
    rustix::io::pwrite(ledger, &[1], line_at(line)).unwrap();
}

/// Looks a moment before, and when the time is over that a process has to end which `lost` its lock then.
fn has_its_whole_time(ledger: &Ledger, loan: Loan, lost: Instant) {
    assert!(!ledger.is_unused_at(loan, lost));
    assert!(!ledger.is_unused_at(loan, lost + TEARDOWN - Duration::from_millis(1)));
    assert!(ledger.is_unused_at(loan, lost + TEARDOWN));
}

#[test]
fn one_that_is_killed_has_its_whole_time_to_end_however_early_somebody_looked() {
    // LE-3
    let hour = Duration::from_secs(3600);
    for is_looked_at_meanwhile in [true, false] {
        let ledger = Ledger::new().unwrap();
        let loan = ledger.lend().unwrap();
        let myself = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let line = ledger.enlist(Some(myself)).unwrap();
        let mut now = Instant::now();
        // Before it has locked its line.
        assert!(ledger.is_unused_at(loan, now));
        let importer = open_ledger(&ledger, line);
        now += hour;
        if is_looked_at_meanwhile {
            assert!(ledger.is_unused_at(loan, now));
        }
        is_killed(&ledger, line, importer);
        has_its_whole_time(&ledger, loan, now);
        // Also when it had lost the lock before.
        let importer = open_ledger(&ledger, line);
        now += hour;
        assert!(ledger.is_unused_at(loan, now));
        is_killed(&ledger, line, importer);
        has_its_whole_time(&ledger, loan, now);
    }
}

#[test]
fn one_that_cannot_be_seen_and_is_killed_has_its_whole_time_to_end_too() {
    // LE-3
    let ledger = Ledger::new().unwrap();
    let loan = ledger.lend().unwrap();
    let line = ledger.enlist(None).unwrap();
    let importer = open_ledger(&ledger, line);
    let lost = Instant::now() + Duration::from_secs(3600);
    is_killed(&ledger, line, importer);
    has_its_whole_time(&ledger, loan, lost);
    // Then it is forgotten, and so is one that never begins.
    assert_eq!(ledger.enlist(None), Some(line));
    assert!(ledger.is_unused_at(loan, lost));
    assert_eq!(ledger.enlist(None), Some(line));
}

#[test]
fn only_a_ledger_is_opened_as_one() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let refused = Borrowed::open(&file.into(), 0);
    assert!(
        matches!(refused, Err(CudaError::BadTicket(_))),
        "{refused:?}"
    );
}

/// LE-2
#[test]
fn nobody_who_has_a_ledger_can_forbid_its_owner_to_write_to_it() {
    let ledger = Ledger::new().unwrap();
    let borrowed = Borrowed::open(&ledger.as_fd().try_clone_to_owned().unwrap(), 0).unwrap();
    for seal in [SealFlags::FUTURE_WRITE, SealFlags::WRITE, SealFlags::GROW] {
        assert!(fcntl_add_seals(&borrowed, seal).is_err(), "{seal:?}");
    }
    let loan = ledger.lend().unwrap();
    drop(borrowed.take(loan).unwrap());
    ledger.end(loan);
    assert!(matches!(borrowed.take(loan), Err(CudaError::NotShared)));
}
