//! What the processes of a run write down: files to which records are only appended, one per line, as JSON.
//!
//! 1. HI-1: a record is in the file when [`note`] returns. It is written with one call of the system and waits in no buffer of the
//!    process, so SIGKILL loses nothing that was noted. (A machine that loses power does; this is about processes.)
//! 2. HI-2: what is noted before something is done stands in the file before it happens, and what is noted after it stands there
//!    after it: a call is noted as begun before it is made, a reference as released before it is dropped.
//! 3. HI-3: all processes of a run are on one machine and have one clock, so the records of all files are in one order. It is the clock that
//!    only goes forward, which nobody sets.
//!
//! The Python worker (`farref_chaos.py`) writes the same records.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::trouble::Trouble;

/// Which process of the run: they are counted from 1, in the order in which they are started. 0 is the driver.
pub(super) type Life = u32;

/// The driver's own.
pub(super) const DRIVER: Life = 0;

/// Calls that a function makes in turn have the number of the call that it runs for, with this added.
pub(super) const HOP: u64 = 1 << 52;

/// The number of the call that is made in turn for this one.
pub(super) fn hop(call: u64) -> u64 {
    call | HOP
}

/// A number that no other process of the run gives. Python takes it as it is, and so does JSON in a browser.
pub(super) fn number(life: Life, count: u32) -> u64 {
    (u64::from(life) << 32) | u64::from(count)
}

/// Something that has happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// Microseconds, by the machine's clock that only goes forward.
    pub(super) at: u64,
    /// Who has noted it.
    pub(super) life: Life,
    pub(super) event: Event,
}

/// What has happened.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// The driver has started a process.
    Started {
        life: Life,
        worker: String,
        python: bool,
    },
    /// The driver does something to a worker.
    Fault {
        number: u32,
        /// What it is called.
        kind: String,
        worker: String,
        life: Life,
        /// Whether the others may lose the worker by it.
        loses: bool,
        /// With its figures, for people.
        text: String,
    },
    /// And has stopped doing it.
    FaultOver { number: u32 },
    /// A process has ended.
    Gone {
        life: Life,
        /// Whether the driver has killed it.
        killed: bool,
        code: Option<i32>,
    },
    /// The driver did not get to run for so long: neither did the workers, perhaps.
    Stalled { micros: u64 },
    /// What the driver waits for in vain.
    Hung { life: Life, what: String },
    /// What all are to do from now on.
    Phase { name: String },

    /// A worker is a member of the group.
    Joined { worker: String },
    /// A call is about to be made.
    Begun {
        call: u64,
        function: String,
        to: String,
        /// Workers that it goes to from there, or whose values it is on.
        through: Vec<String>,
        /// The value that it is on, or those that it carries references to.
        values: Vec<u64>,
        expects: Expected,
        limit_ms: u64,
        /// How many such limits it may take, one after the other.
        limits: u32,
    },
    /// A function has begun to run.
    Ran { call: u64, function: String },
    /// A function answers with a reference that its caller did not know of.
    Lent { call: u64, value: u64 },
    /// A call is over for its caller.
    Ended { call: u64, outcome: Outcome },
    /// A value has come to be, on the worker that notes it.
    Made { value: u64 },
    /// It has been used there.
    Used { value: u64, call: u64 },
    /// It has been dropped there.
    Freed { value: u64 },
    /// A worker has a reference to a value, and keeps it.
    Kept { hold: u64, value: u64 },
    /// It is about to drop it.
    Released { hold: u64 },
    /// How a worker is.
    Sampled(Sample),
    /// It is about to leave the group.
    Leaving,
    /// It makes no more calls, and all that it has made are over.
    Quiet,
    /// It has let go of everything; this is what is left.
    Settled(Sample),
    /// It is no member any more.
    Over { how: String },
}

/// What the phase is called in which all are to end.
pub(super) const END: &str = "end";

/// What a worker has at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Sample {
    /// Memory of the process, in KiB.
    pub(super) memory: u64,
    pub(super) references: u64,
    pub(super) open_calls: u64,
    pub(super) contexts: u64,
    /// Of the values whose lives are noted, those that are here.
    pub(super) values: u64,
}

/// What a call is to bring.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Expected {
    /// This, or what stands for it.
    Value(u64),
    /// Something that the caller cannot know.
    Anything,
    /// The function's own error, with this in it.
    Refusal(u64),
    /// It cannot be done in the time that it is given.
    Timeout,
    /// It is dropped before anything can come.
    Nothing,
}

/// What a call has brought.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Value(u64),
    Refusal(u64),
    Failed(Trouble),
    Dropped,
}

/// The file that this process writes to.
struct Writer {
    life: Life,
    file: Mutex<File>,
}

static WRITER: OnceLock<Writer> = OnceLock::new();

/// The file of a process.
pub(super) fn path(folder: &Path, life: Life) -> PathBuf {
    match life {
        DRIVER => folder.join("driver.jsonl"),
        _ => folder.join(format!("life-{life}.jsonl")),
    }
}

/// From now on this process notes what happens there.
pub(super) fn open(folder: &Path, life: Life) -> anyhow::Result<()> {
    let path = path(folder, life);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    let file = Mutex::new(file);
    // A process that has one already keeps it: there is one run in a process.
    let _ = WRITER.set(Writer { life, file });
    Ok(())
}

/// Notes it, before this returns (HI-1). In a process that has no file, which is a unit test's, nothing is noted.
pub(super) fn note(event: Event) {
    let Some(writer) = WRITER.get() else {
        return;
    };
    let mut file = writer.file.lock().unwrap_or_else(PoisonError::into_inner);
    let record = Record {
        at: now(),
        life: writer.life,
        event,
    };
    let written = serde_json::to_string(&record).map_err(std::io::Error::other);
    let written = written.and_then(|line| file.write_all((line + "\n").as_bytes()));
    if let Err(error) = written {
        // What cannot be noted cannot be checked: nothing that this process does counts from here on.
        eprintln!("cannot write the history of life {}: {error}", writer.life);
        std::process::exit(UNWRITABLE);
    }
}

/// Notes that a function ran for a call.
pub(super) fn ran(call: u64, function: &str) {
    note(Event::Ran {
        call,
        function: function.to_owned(),
    });
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A number for a call, a value or a reference that is kept: no other process of the run gives it.
pub(super) fn next_number() -> u64 {
    let life = WRITER.get().map_or(DRIVER, |writer| writer.life);
    number(life, COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The exit code of a process that cannot write its history.
pub(super) const UNWRITABLE: i32 = 74;

/// What the clock says that is the same for all processes of a machine (HI-3), in microseconds.
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// Reads the histories of all processes of a run, in one order (HI-3).
pub(super) fn read_all(folder: &Path) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    let entries = std::fs::read_dir(folder);
    for entry in entries.with_context(|| format!("cannot look into {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_none_or(|end| end != "jsonl") {
            continue;
        }
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        records.extend(read(&text).with_context(|| format!("in {}", path.display()))?);
    }
    // Records of one file stay in their order: the sort is a stable one.
    records.sort_by_key(|record| record.at);
    Ok(records)
}

/// Reads one history. Its last line may be cut off: its process was killed while it wrote.
fn read(text: &str) -> anyhow::Result<Vec<Record>> {
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let lines = text[..whole].lines().enumerate();
    lines
        .map(|(index, line)| {
            serde_json::from_str(line).with_context(|| format!("line {}: {line}", index + 1))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hi_1_what_was_written_whole_is_read_and_what_was_cut_off_is_left_out() -> anyhow::Result<()>
    {
        let records = [
            Record {
                at: 5,
                life: 2,
                event: Event::Made { value: 7 },
            },
            Record {
                at: 6,
                life: 2,
                event: Event::Quiet,
            },
        ];
        let mut text = String::new();
        for record in &records {
            text += &(serde_json::to_string(record)? + "\n");
        }
        assert_eq!(read(&text)?, records);
        assert_eq!(read(&(text.clone() + "{\"at\":7,\"li"))?, records);
        assert!(read("")?.is_empty());
        // In the middle it is no trace of a death.
        assert!(read(&format!("{{\"at\"\n{text}")).is_err());
        Ok(())
    }

    #[test]
    fn hi_3_records_of_all_files_are_in_one_order() -> anyhow::Result<()> {
        let folder = std::env::temp_dir().join(format!("farref-history-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let line = |at, life, event| {
            let record = Record { at, life, event };
            serde_json::to_string(&record).map(|line| line + "\n")
        };
        std::fs::write(
            path(&folder, 1),
            line(1, 1, Event::Quiet)? + &line(4, 1, Event::Leaving)?,
        )?;
        std::fs::write(
            path(&folder, DRIVER),
            line(2, 0, Event::FaultOver { number: 1 })?,
        )?;
        std::fs::write(folder.join("settings.json"), "no history")?;
        let read = read_all(&folder);
        std::fs::remove_dir_all(&folder)?;
        let times: Vec<u64> = read?.iter().map(|record| record.at).collect();
        assert_eq!(times, [1, 2, 4]);
        Ok(())
    }

    #[test]
    fn hi_3_the_clock_is_the_one_that_nobody_sets() {
        let (one, other) = (now(), now());
        assert!(one <= other);
        // It begins with the machine, and no machine has been up since 1970.
        let years = one / 1_000_000 / 86_400 / 365;
        assert!(years < 30, "{years}");
    }

    #[test]
    fn numbers_of_different_processes_differ_and_a_call_in_turn_has_one_of_its_own() {
        assert_ne!(number(1, 2), number(2, 1));
        assert!(number(1 << 19, u32::MAX) < HOP);
        assert_ne!(hop(number(1, 2)), number(1, 2));
        // A number of JavaScript's.
        assert!(hop(number(1 << 19, u32::MAX)) < 1 << 53);
    }
}
