//! How much is measured.

use std::path::PathBuf;
use std::time::Duration;

use super::arguments::Arguments;
use super::part::Part;
use super::transport::Transport;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) parts: Vec<Part>,
    /// The ones that were asked for.
    transports: Vec<Transport>,
    /// How long most measurements take.
    pub(super) time: Duration,
    /// Only see that everything works.
    pub(super) smoke: bool,
    /// How many calls are under way at once.
    pub(super) depths: [usize; 4],
    /// Of values, in bytes.
    pub(super) sizes: Vec<usize>,
    /// How many references live at once.
    pub(super) live: usize,
    /// How many workers a group has.
    pub(super) groups: Vec<u32>,
    /// How often each of them comes together and ends.
    pub(super) lives: u32,
    /// A Python that has torch.
    pub(super) python: Option<PathBuf>,
}

impl Plan {
    pub(super) fn new(arguments: &Arguments) -> Self {
        const KIB: usize = 1 << 10;
        const MIB: usize = 1 << 20;
        let (sizes, live, groups, lives) = match (arguments.quick, arguments.full) {
            (true, _) => (vec![64, 64 * KIB, MIB], 2000, vec![2, 3], 1),
            (false, false) => (
                vec![64, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 100 * MIB],
                100_000,
                vec![2, 4, 8],
                3,
            ),
            (false, true) => (
                (6..=28).step_by(2).map(|power| 1 << power).collect(),
                10_000_000,
                vec![2, 4, 8, 16, 32, 64],
                5,
            ),
        };
        let mut parts = match arguments.parts.is_empty() {
            true => <Part as clap::ValueEnum>::value_variants().to_vec(),
            false => arguments.parts.clone(),
        };
        parts.sort();
        parts.dedup();
        let mut transports = arguments.transport.clone();
        transports.sort();
        transports.dedup();
        Self {
            parts,
            transports,
            time: match arguments.quick {
                true => Duration::from_millis(20),
                false => arguments.seconds,
            },
            smoke: arguments.quick,
            depths: [1, 16, 256, 4096],
            sizes,
            live: arguments.live.unwrap_or(live),
            groups,
            lives,
            python: arguments.python.clone(),
        }
    }
    /// Over what a part is measured: what was asked for, or else all that differs. Only large values go through shared
    /// memory, and what TLS costs shows in calls and values.
    pub(super) fn transports(&self, part: Part) -> Vec<Transport> {
        if !self.transports.is_empty() {
            return self.transports.clone();
        }
        let differs = |transport: &Transport| match transport {
            Transport::Tcp | Transport::Unix => true,
            Transport::Tls => matches!(part, Part::Calls | Part::Pipelined | Part::Values),
            Transport::Shm => part == Part::Values,
        };
        Transport::ALL.into_iter().filter(differs).collect()
    }
}
