//! Who is to be started: the command line, checked.

use std::collections::HashSet;

use anyhow::{Context as _, bail, ensure};
use farref::Rendezvous;

use super::arguments::{Arguments, Restart};
use crate::{certs, group_tls};

/// More ranks than this on one machine are a typing error.
const MAX_RANKS: u32 = 4096;
/// farref's limit for a group.
const MAX_WORLD_SIZE: u32 = 1 << 14;
/// Open files of the launcher for each rank: two pipes, a process descriptor, connections to the store.
const FILES_PER_RANK: u64 = 8;

/// The ranks of this node, and where they stand in the group.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) nodes: u32,
    pub(super) node: u32,
    /// How many ranks each node has.
    pub(super) ranks: u32,
    /// The names of all ranks of the group.
    names: Option<Vec<String>>,
    pub(super) rendezvous: Option<(String, u16)>,
    /// Whom the certificates are for that the launcher makes, if it makes any.
    pub(super) tls: Option<TlsNames>,
}

/// Which names certificates of ranks have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TlsNames {
    /// Each the name of its rank.
    Own,
    /// Any: the program chooses.
    Any,
}

impl Plan {
    pub(super) fn new(arguments: &Arguments) -> anyhow::Result<Self> {
        let nodes = arguments.nnodes;
        ensure!(nodes > 0, "--nnodes must be at least 1");
        let node = match arguments.node_rank {
            Some(node) => node,
            None if nodes == 1 => 0,
            None => bail!("--nnodes {nodes} needs --node-rank: 0 on the first host, 1 on the next"),
        };
        ensure!(
            node < nodes,
            "--node-rank {node} is out of range: with --nnodes {nodes} it goes from 0 to {}",
            nodes - 1
        );
        let rendezvous = match &arguments.rendezvous {
            Some(text) => Some(host_and_port(text)?),
            None if nodes == 1 => None,
            None => bail!(
                "--nnodes {nodes} needs --rendezvous HOST:PORT: where node 0 runs, and a free port there"
            ),
        };
        ensure!(
            nodes == 1 || arguments.restart == Restart::Failed,
            "--restart all works on one node only; with --nnodes {nodes} use --restart failed"
        );
        let given = arguments.names.as_deref().map(split_names).transpose()?;
        let ranks = match (arguments.ranks, &given) {
            (Some(ranks), _) => ranks,
            (None, Some(names)) => ranks_of(names, nodes)?,
            (None, None) => bail!("how many ranks? Say -n N, or --names with a name for each"),
        };
        ensure!(
            ranks > 0,
            "-n 0 starts nothing: say how many ranks to start"
        );
        ensure!(
            ranks <= MAX_RANKS,
            "-n {ranks} is too many: at most {MAX_RANKS} ranks on one node"
        );
        let world_size = ranks.checked_mul(nodes);
        ensure!(
            world_size.is_some_and(|size| size <= MAX_WORLD_SIZE),
            "{nodes} nodes of {ranks} ranks are too many: at most {MAX_WORLD_SIZE} in all"
        );
        let names = match given {
            Some(names) => Some(names_for(names, nodes * ranks)?),
            None => None,
        };
        Ok(Self {
            nodes,
            node,
            ranks,
            names,
            rendezvous,
            tls: tls(arguments)?,
        })
    }

    pub(super) fn world_size(&self) -> u32 {
        self.nodes * self.ranks
    }

    /// The rank in the group of the `local`th rank of this node.
    pub(super) fn rank(&self, local: u32) -> u32 {
        self.node * self.ranks + local
    }

    pub(super) fn name(&self, local: u32) -> Option<&str> {
        let names = self.names.as_ref()?;
        names.get(self.rank(local) as usize).map(String::as_str)
    }

    /// What a worker of farref is called in that rank, unless its program chooses.
    pub(super) fn worker_name(&self, local: u32) -> String {
        match self.name(local) {
            Some(name) => name.to_owned(),
            None => format!("worker{}", self.rank(local)),
        }
    }

    /// What stands before the lines of a rank.
    pub(super) fn label(&self, local: u32) -> String {
        match self.name(local) {
            Some(name) => name.to_owned(),
            None => self.rank(local).to_string(),
        }
    }

    /// How a rank is spoken of: "trainer1 (rank 2)".
    pub(super) fn title(&self, local: u32) -> String {
        let rank = self.rank(local);
        let node = match self.nodes {
            1 => String::new(),
            _ => format!(" on node {}", self.node),
        };
        match self.name(local) {
            Some(name) => format!("{name} (rank {rank}{node})"),
            None => format!("rank {rank}{node}"),
        }
    }

    /// Raises the limit of open files if the ranks need more than it allows now.
    pub(super) fn allow_enough_files(&self) -> anyhow::Result<()> {
        let need = 64 + FILES_PER_RANK * u64::from(self.ranks);
        farref_group::allow_open_files(need, &format!("{} ranks", self.ranks))
    }
}

fn tls(arguments: &Arguments) -> anyhow::Result<Option<TlsNames>> {
    let names = match (arguments.tls, arguments.tls_any_name) {
        (false, false) => return Ok(None),
        (_, false) => TlsNames::Own,
        (_, true) => TlsNames::Any,
    };
    let nodes = arguments.nnodes;
    ensure!(
        nodes == 1,
        "--tls works on one node only, because the certificates of a group have one authority; with --nnodes {nodes} make them \
         with `farref certs`, and set {} on each node (one certificate for all its ranks: `farref certs issue --as`)",
        group_tls::VARIABLES.join(", ")
    );
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if let Some(name) = group_tls::VARIABLES.iter().find(|name| is_set(name)) {
        bail!("{name} is set, and --tls makes certificates: leave one of them away");
    }
    Ok(Some(names))
}

fn host_and_port(text: &str) -> anyhow::Result<(String, u16)> {
    match format!("tcp://{text}").parse() {
        Ok(Rendezvous::Tcp { host, port }) => Ok((host, port)),
        _ => bail!("--rendezvous {text:?} is not HOST:PORT, such as host0:29500 or 10.0.0.1:29500"),
    }
}

const PATTERN: &str = "{rank}";

fn split_names(text: &str) -> anyhow::Result<Vec<String>> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let patterns = names.iter().filter(|name| name.contains(PATTERN)).count();
    let last = names.last().is_some_and(|name| name.contains(PATTERN));
    ensure!(
        patterns == 0 || (patterns == 1 && last),
        "--names {text}: only the last name may be a pattern with {PATTERN}"
    );
    Ok(names)
}

/// How many ranks a node has if every name is for one.
fn ranks_of(names: &[String], nodes: u32) -> anyhow::Result<u32> {
    if let Some(pattern) = names.last().filter(|name| name.contains(PATTERN)) {
        bail!("--names ...{pattern} is a pattern: say with -n N how many ranks there are");
    }
    let count = u32::try_from(names.len()).context("too many names")?;
    ensure!(
        count % nodes == 0,
        "{count} names do not spread evenly over {nodes} nodes: every node has as many ranks"
    );
    Ok(count / nodes)
}

fn names_for(mut names: Vec<String>, world_size: u32) -> anyhow::Result<Vec<String>> {
    if let Some(pattern) = names.pop_if(|name| name.contains(PATTERN)) {
        let first = names.len() as u32;
        names.extend((first..world_size).map(|rank| pattern.replace(PATTERN, &rank.to_string())));
    }
    let count = names.len();
    ensure!(
        count == world_size as usize,
        "{count} names for {world_size} ranks: give every rank of the group one name"
    );
    let mut seen = HashSet::new();
    for name in &names {
        certs::check_name(name)?;
        ensure!(
            seen.insert(name),
            "the name {name:?} is there twice: the names of a group differ"
        );
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, world_size: u32) -> Result<Vec<String>, String> {
        split_names(text)
            .and_then(|names| names_for(names, world_size))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_pattern_names_the_ranks_that_are_left() {
        let expected = ["ps", "trainer1", "trainer2"].map(str::to_owned);
        assert_eq!(names("ps,trainer{rank}", 3), Ok(expected.into()));
        assert_eq!(names("w{rank}", 2), Ok(vec!["w0".into(), "w1".into()]));
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        for (text, world_size) in [
            ("a,b", 3),
            ("a,b", 1),
            ("a,a", 2),
            ("a,", 2),
            ("a b", 1),
            ("a/b", 1),
            ("w{rank},x", 2),
            ("a,b,w{rank}", 1),
        ] {
            assert!(names(text, world_size).is_err(), "{text} {world_size}");
        }
        assert!(names(&"x".repeat(127), 1).is_ok());
        assert!(names(&"x".repeat(128), 1).is_err());
    }

    #[test]
    fn names_spread_evenly_over_the_nodes() {
        let four = split_names("a,b,c,d").unwrap_or_default();
        assert!(matches!(ranks_of(&four, 2), Ok(2)));
        assert!(ranks_of(&four, 3).is_err());
    }
}
