//! What torchrun, Open MPI, Slurm and Kubernetes tell the processes they start.

use super::variables::{Variables, malformed};
use crate::error::RendezvousError;
use crate::identity::MAX_WORLD_SIZE;
use crate::location::Rendezvous;
use crate::place_text::is_host;

/// Who started this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Launcher {
    /// torchrun, or somebody who speaks its language.
    Torchrun,
    /// `mpirun` of Open MPI, as a plain launcher: its own wire is not used.
    OpenMpi,
    /// `srun`.
    Slurm,
    /// An indexed job of Kubernetes.
    IndexedJob,
    /// A StatefulSet of Kubernetes: the rank is the number at the end of the host's name.
    StatefulSet(u32),
    /// Nobody we know.
    Unknown,
}

impl Launcher {
    /// A host's name that ends in a number means little by itself, so it counts only for those who
    /// have said how many workers there are.
    pub(super) fn detect(variables: &Variables<'_>, own_world_size: Option<u32>) -> Self {
        let is_set = |variable| variables.text(variable).is_some();
        if is_set("RANK") || is_set("WORLD_SIZE") {
            Self::Torchrun
        } else if is_set("OMPI_COMM_WORLD_RANK") {
            // Before Slurm: what `mpirun` starts in a batch script finds the script's own SLURM_PROCID, too.
            Self::OpenMpi
        } else if is_set("SLURM_PROCID") {
            Self::Slurm
        } else if is_set("JOB_COMPLETION_INDEX") {
            Self::IndexedJob
        } else {
            let ordinal = variables
                .text("HOSTNAME")
                .as_deref()
                .and_then(ordinal)
                .filter(|ordinal| own_world_size.is_some_and(|size| *ordinal < size));
            ordinal.map_or(Self::Unknown, Self::StatefulSet)
        }
    }

    pub(super) fn rank(self, variables: &Variables<'_>) -> Result<Option<u32>, RendezvousError> {
        match self {
            Self::Torchrun => variables.rank("RANK"),
            Self::OpenMpi => variables.rank("OMPI_COMM_WORLD_RANK"),
            Self::Slurm => variables.rank("SLURM_PROCID"),
            Self::IndexedJob => variables.rank("JOB_COMPLETION_INDEX"),
            Self::StatefulSet(ordinal) => Ok(Some(ordinal)),
            Self::Unknown => Ok(None),
        }
    }

    /// Kubernetes does not tell its processes how many they are.
    pub(super) fn world_size(
        self,
        variables: &Variables<'_>,
    ) -> Result<Option<u32>, RendezvousError> {
        match self {
            Self::Torchrun => variables.world_size("WORLD_SIZE"),
            Self::OpenMpi => variables.world_size("OMPI_COMM_WORLD_SIZE"),
            Self::Slurm => variables.world_size("SLURM_NTASKS"),
            Self::IndexedJob | Self::StatefulSet(_) | Self::Unknown => Ok(None),
        }
    }

    /// Where the processes meet, as `MASTER_ADDR` and `MASTER_PORT` say. Slurm's processes need neither.
    pub(super) fn rendezvous(
        self,
        variables: &Variables<'_>,
    ) -> Result<Option<Rendezvous>, RendezvousError> {
        let host = match variables.text("MASTER_ADDR") {
            Some(host) if is_host(&host) => host,
            Some(host) => {
                return Err(malformed(
                    "MASTER_ADDR",
                    host,
                    "a host's name or address".into(),
                ));
            }
            None if self == Self::Slurm => match first_host(variables)? {
                Some(host) => host,
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        let port = match variables.text("MASTER_PORT") {
            Some(text) => match text.parse() {
                Ok(port) if port > 0 => port,
                _ => {
                    let expected = "a port from 1 to 65535".into();
                    return Err(malformed("MASTER_PORT", text, expected));
                }
            },
            None if self == Self::Slurm => default_port(variables)?,
            None => {
                return Err(RendezvousError::Unset {
                    variable: "MASTER_PORT",
                    why: "MASTER_ADDR is set, and a rendezvous needs both",
                });
            }
        };
        Ok(Some(Rendezvous::Tcp { host, port }))
    }

    /// The name of this run of the job. A Slurm job that is requeued keeps its number and counts its steps anew.
    pub(super) fn run_id(self, variables: &Variables<'_>) -> Option<String> {
        let parts: &[&str] = match self {
            Self::Torchrun => &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
            Self::OpenMpi => &["PMIX_NAMESPACE"],
            Self::Slurm => &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"],
            Self::IndexedJob | Self::StatefulSet(_) | Self::Unknown => return None,
        };
        let (run, rest) = parts.split_first()?;
        let mut id = variables.text(run)?;
        for part in rest.iter().filter_map(|part| variables.text(part)) {
            id = format!("{id}.{part}");
        }
        Some(id)
    }
}

/// The first host that Slurm gave the step, or else the job.
fn first_host(variables: &Variables<'_>) -> Result<Option<String>, RendezvousError> {
    for variable in ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"] {
        if let Some(list) = variables.text(variable) {
            return match expand_first(&list).filter(|host| is_host(host)) {
                Some(host) => Ok(Some(host)),
                None => Err(malformed(
                    variable,
                    list,
                    "a Slurm node list such as node[03-07,9],other".into(),
                )),
            };
        }
    }
    Ok(None)
}

/// The port where tasks of one Slurm job meet if nobody chose one: all of them must come to the
/// same, and two jobs on one host should not.
fn default_port(variables: &Variables<'_>) -> Result<u16, RendezvousError> {
    const FIRST: u16 = 20_000;
    const COUNT: u64 = 10_000;
    let Some(job) = variables.text("SLURM_JOB_ID") else {
        return Ok(FIRST);
    };
    match job.parse::<u64>() {
        Ok(number) => Ok(FIRST + (number % COUNT) as u16),
        Err(_) => Err(malformed("SLURM_JOB_ID", job, "a job's number".into())),
    }
}

/// The first host of "node[03-07,9],x": "node03". There may be several brackets in a name.
fn expand_first(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    loop {
        let end = rest.find([',', '[', ']']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        rest = match rest[end..].strip_prefix('[') {
            Some(range) => {
                let (numbers, after) = range.split_once(']')?;
                let first = numbers.split([',', '-']).next()?;
                if first.is_empty() || !first.bytes().all(|digit| digit.is_ascii_digit()) {
                    return None;
                }
                host.push_str(first);
                after
            }
            None if rest[end..].starts_with(']') => return None,
            None => return Some(host),
        };
    }
}

/// 3 of "name-3".
fn ordinal(hostname: &str) -> Option<u32> {
    let (name, number) = hostname.rsplit_once('-')?;
    let digits = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    let number = number.parse().ok().filter(|_| digits && !name.is_empty())?;
    (number < MAX_WORLD_SIZE).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_node_list_is_found() {
        for (list, first) in [
            ("node", Some("node")),
            ("node3,node4", Some("node3")),
            ("node[03-07,9],x", Some("node03")),
            ("node[9]", Some("node9")),
            ("rack[1-2]n[03,05].cluster,x", Some("rack1n03.cluster")),
            ("n[003-007]-ib", Some("n003-ib")),
            ("", Some("")),
            ("node[", None),
            ("node[]", None),
            ("node]3", None),
            ("node[a-b]", None),
        ] {
            assert_eq!(expand_first(list).as_deref(), first, "{list}");
        }
    }

    #[test]
    fn a_stateful_sets_ordinal_is_the_number_behind_the_last_hyphen() {
        for (hostname, number) in [
            ("trainer-3", Some(3)),
            ("ps-a-0", Some(0)),
            ("trainer", None),
            ("trainer-", None),
            ("-3", None),
            ("trainer-+3", None),
            ("pod-7f9c", None),
            ("pod-99999999999", None),
        ] {
            assert_eq!(ordinal(hostname), number, "{hostname}");
        }
    }
}
