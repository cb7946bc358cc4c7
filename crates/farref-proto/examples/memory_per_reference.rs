//! How much memory an owner needs for each reference that it owns and another node holds.
//!
//! ```sh
//! cargo run --release -p farref-proto --example memory_per_reference -- 10000000 [SHARDS] [TURNOVER]
//! ```
//!
//! Makes that many references, each created by another node (so one fork is registered) and with
//! its value there, and reads from `/proc/self/status` how far the resident memory of this process
//! has grown. Then, if `TURNOVER` is given, it frees the oldest reference and creates a new one, so
//! many times as there are references times `TURNOVER`, and reads again. Linux only.
//!
//! The value is a `u64`, as large as the `Arc` that a runtime would keep; what such an `Arc` points
//! to is not counted.

use std::env;
use std::error::Error;
use std::fs;
use std::time::{Duration, Instant};

use farref_proto::{
    Creation, Fingerprint, ForkId, NodeId, Outbox, RRefId, RefTable, RefTableConfig, Share,
};

const FINGERPRINT: Fingerprint = Fingerprint(7);
/// The references are created by this many nodes.
const CREATORS: u64 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args()
        .skip(1)
        .map(|argument| argument.replace('_', "").parse());
    let mut next_or = |default: u64| arguments.next().unwrap_or(Ok(default));
    let (references, shards, turnover) = (next_or(10_000_000)?, next_or(1)?, next_or(0)?);
    let shards_as_u32 = u32::try_from(shards.max(1))?;

    let before = status("VmRSS")?;
    let mut owner = Owner::new(shards_as_u32);
    for index in 0..references {
        owner.create(index);
    }
    println!("{references} references in {shards} shard(s)");
    report("all created", references, before)?;
    println!(
        "  highest while creating: {:.1} bytes each",
        each(status("VmHWM")?, before, references)
    );
    println!(
        "  by the sizes of the types: {:.1} bytes each",
        owner.computed_bytes() / references as f64
    );
    println!("  longest single creation: {:?}", owner.longest);

    if turnover > 0 {
        owner.longest = Duration::ZERO;
        for index in 0..references * turnover {
            owner.release(index);
            owner.create(references + index);
        }
        report(
            &format!("each replaced {turnover} times"),
            references,
            before,
        )?;
        println!("  longest single creation: {:?}", owner.longest);
    }
    assert_eq!(owner.len(), references);
    Ok(())
}

/// One owner's shards.
struct Owner {
    shards: Vec<RefTable<u64>>,
    out: Outbox<u64>,
    longest: Duration,
}

impl Owner {
    fn new(shards: u32) -> Self {
        let me = NodeId::new(0, 1);
        let table = |shard| {
            let mut config = RefTableConfig::default();
            (config.shard, config.shards) = (shard, shards);
            RefTable::new(me, config)
        };
        Self {
            shards: (0..shards).map(table).collect(),
            out: Outbox::new(),
            longest: Duration::ZERO,
        }
    }

    fn create(&mut self, index: u64) {
        let share = self.share(index);
        let Share { rref, fork } = share;
        let creation = Creation {
            share,
            fingerprint: FINGERPRINT,
        };
        let shard = (rref.counter % self.shards.len() as u64) as usize;
        let began = Instant::now();
        self.shards[shard]
            .accept_creation(fork.origin, creation, &mut self.out)
            .expect("a new reference");
        self.shards[shard].fulfil(rref, index, &mut self.out);
        self.longest = self.longest.max(began.elapsed());
        while self.out.pop_control().is_some() {}
    }

    fn release(&mut self, index: u64) {
        let share = self.share(index);
        let shard = (share.rref.counter % self.shards.len() as u64) as usize;
        self.shards[shard]
            .on_release(share.fork.origin, share, &mut self.out)
            .expect("the holder releases");
        assert!(self.out.pop_event().is_some(), "the value is freed");
    }

    /// The id of a reference and of its first fork, as a creator with as many shards makes them.
    fn share(&self, index: u64) -> Share {
        let creator = NodeId::new(1 + (index % CREATORS) as u32, 1);
        let shards = self.shards.len() as u64;
        let serial = index / CREATORS;
        let counter = serial / shards * 2 * shards + serial % shards;
        Share {
            rref: RRefId::new(creator, counter),
            fork: ForkId::new(creator, counter + shards),
        }
    }

    fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.len() as u64).sum()
    }

    /// What tables of the present sizes need that were never larger: an entry for each reference, and an index with a
    /// power of two of buckets of eight bytes, at most seven eighths of them full, and one byte beside each.
    fn computed_bytes(&self) -> f64 {
        let entry = size_of::<(RRefId, shape::Owner)>();
        let buckets = |shard: &RefTable<u64>| (shard.len() * 8).div_ceil(7).next_power_of_two();
        let bytes = |shard: &RefTable<u64>| shard.len() * entry + buckets(shard) * 9;
        self.shards.iter().map(bytes).sum::<usize>() as f64
    }
}

/// The shape of the table's private entries, to know their size. If they change, the computed
/// figure no longer fits the measured one.
mod shape {
    use farref_proto::{Fingerprint, ForkId, NodeId};

    #[expect(dead_code, reason = "only its size is of interest")]
    pub(super) struct Owner(Slot, Forks, Fingerprint, u32, Option<Box<()>>);

    #[expect(dead_code, reason = "only its size is of interest")]
    enum Slot {
        Pending,
        Building,
        Ready(u64),
        Void,
    }

    #[expect(dead_code, reason = "only its size is of interest")]
    enum Forks {
        Empty,
        One(ForkId, NodeId),
        Many(Vec<(ForkId, NodeId)>),
    }
}

fn report(state: &str, references: u64, before: u64) -> Result<(), Box<dyn Error>> {
    println!(
        "{state}: {:.1} bytes each",
        each(status("VmRSS")?, before, references)
    );
    Ok(())
}

fn each(now: u64, before: u64, references: u64) -> f64 {
    now.saturating_sub(before) as f64 / references as f64
}

/// One of the sizes in `/proc/self/status`, in bytes.
fn status(name: &str) -> Result<u64, Box<dyn Error>> {
    let path = "/proc/self/status";
    let text = fs::read_to_string(path)
        .map_err(|error| format!("{path}: {error} (this example runs on Linux only)"))?;
    let line = text
        .lines()
        .find(|line| line.split(':').next() == Some(name));
    let kibibytes = line.and_then(|line| line.split_whitespace().nth(1));
    let kibibytes = kibibytes.ok_or_else(|| format!("no {name} in {path}"))?;
    Ok(kibibytes.parse::<u64>()? * 1024)
}
