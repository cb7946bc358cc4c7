//! How much is measured.

use std::path::PathBuf;
use std::time::Duration;

use super::arguments::Arguments;
use super::part::Part;
use super::transport::Transport;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
#[cfg(any(test, feature = "cuda"))]
const GIB: usize = 1 << 30;

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
        let mut parts = match (arguments.parts.as_slice(), arguments.cuda) {
            ([], false) => Part::everywhere(),
            (named, cuda) => {
                let cuda = cuda.then_some(Part::Cuda);
                named.iter().copied().chain(cuda).collect()
            }
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

    /// Of tensors on a GPU, in bytes: those that are shared, and those that are copied.
    #[cfg(any(test, feature = "cuda"))]
    pub(super) fn gpu_sizes(&self) -> (Vec<usize>, Vec<usize>) {
        match self.smoke {
            true => (vec![KIB, MIB], vec![MIB]),
            false => (vec![KIB, MIB, 64 * MIB, GIB], vec![64 * MIB, 256 * MIB]),
        }
    }

    /// Over what a part is measured: what was asked for, or else all that differs. Only large values go through shared
    /// memory, and what TLS costs shows in calls and values. Tensors on a GPU are copied to other hosts over TCP; between
    /// processes of one host there is shared memory unless it is turned off.
    pub(super) fn transports(&self, part: Part) -> Vec<Transport> {
        if !self.transports.is_empty() {
            return self.transports.clone();
        }
        let differs = |transport: &Transport| match transport {
            Transport::Tcp => true,
            Transport::Unix => part != Part::Cuda,
            Transport::Tls => matches!(part, Part::Calls | Part::Pipelined | Part::Values),
            Transport::Shm => matches!(part, Part::Values | Part::Cuda),
        };
        Transport::ALL.into_iter().filter(differs).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn plan(line: &[&str]) -> Result<Plan, clap::Error> {
        let line = std::iter::once("farref-bench").chain(line.iter().copied());
        Ok(Plan::new(&Arguments::try_parse_from(line)?))
    }

    #[test]
    fn a_gpu_is_used_only_if_it_is_asked_for() -> Result<(), clap::Error> {
        let parts = |line: &[&str]| Ok::<_, clap::Error>(plan(line)?.parts);
        let everywhere = parts(&[])?;
        assert!(!everywhere.contains(&Part::Cuda));
        assert_eq!(everywhere.len(), 9);
        assert_eq!(parts(&["--cuda"])?, [Part::Cuda]);
        assert_eq!(parts(&["cuda"])?, [Part::Cuda]);
        assert_eq!(parts(&["cuda", "--cuda"])?, [Part::Cuda]);
        assert_eq!(parts(&["calls", "--cuda"])?, [Part::Calls, Part::Cuda]);
        Ok(())
    }

    #[test]
    fn tensors_on_a_gpu_are_measured_over_tcp_and_with_shared_memory() -> Result<(), clap::Error> {
        let transports = |line: &[&str]| Ok::<_, clap::Error>(plan(line)?.transports(Part::Cuda));
        assert_eq!(transports(&["--cuda"])?, [Transport::Tcp, Transport::Shm]);
        let chosen = transports(&["--cuda", "--transport", "unix"])?;
        assert_eq!(chosen, [Transport::Unix]);
        Ok(())
    }

    #[test]
    fn tensors_on_a_gpu_have_the_sizes_that_have_budgets() -> Result<(), clap::Error> {
        let (shared, copied) = plan(&["--cuda"])?.gpu_sizes();
        assert_eq!(shared, [KIB, MIB, 64 * MIB, GIB]);
        assert_eq!(copied, [64 * MIB, 256 * MIB]);
        let (shared, copied) = plan(&["--cuda", "--quick"])?.gpu_sizes();
        assert!(shared.iter().chain(&copied).all(|&bytes| bytes <= MIB));
        Ok(())
    }
}
