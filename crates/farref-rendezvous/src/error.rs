//! What can go wrong while a worker finds its group.

use std::fmt;
use std::io;
use std::time::Duration;

use farref_proto::{GroupId, NodeId};

use crate::store::StoreError;

/// Why a worker could not enter its group, or could not find another worker in it.
///
/// ```
/// use std::time::Duration;
///
/// use farref_rendezvous::{RendezvousError, StoreError};
///
/// /// Whether to start the others, or to look for what is wrong with this one.
/// fn is_worth_another_attempt(error: &RendezvousError) -> bool {
///     match error {
///         RendezvousError::Missing { .. } | RendezvousError::TimedOut { .. } => true,
///         RendezvousError::Store { source, .. } => {
///             matches!(source, StoreError::Unreachable { .. } | StoreError::Lost { .. })
///         }
///         _ => false,
///     }
/// }
///
/// let error = RendezvousError::Missing {
///     have: vec![(0, "ps".to_owned())],
///     missing: vec![1],
///     world_size: 2,
///     waited: Duration::from_secs(60),
/// };
/// assert!(is_worth_another_attempt(&error));
/// assert!(error.to_string().contains("rank 1 did not come within 60.0s; rank 0 (ps) did"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// A variable of the environment has a value that cannot be used.
    #[error("{variable}={value:?} cannot be used: expected {expected}")]
    Setting {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it should look like.
        expected: String,
    },
    /// A variable that another one calls for is not set.
    #[error("{variable} is not set: {why}")]
    Unset {
        /// The variable.
        variable: &'static str,
        /// What needs it.
        why: &'static str,
    },
    /// A worker's name has characters it may not have, or is too long.
    #[error(
        "{name:?} cannot be a worker's name: take 1 to 127 letters, digits, `-`, `_`, `:`, `.`"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// Rank and world size do not fit together.
    #[error(
        "rank {} and world size {} do not go together: a group of a fixed size needs a world size \
         of 1 to {limit} and ranks below it", Maybe(.rank), Maybe(.world_size)
    )]
    Rank {
        /// The rank given, if any.
        rank: Option<u32>,
        /// The world size given, if any.
        world_size: Option<u32>,
        /// The largest world size possible.
        limit: u32,
    },
    /// This worker's plan has more addresses, or longer ones, than fit a card.
    #[error("this worker's card cannot be published: {reason}")]
    Card {
        /// What does not fit.
        reason: String,
    },
    /// The group that meets here is not of the kind this worker was told.
    #[error(
        "this worker was started for {mine}, but the group that meets here has {group}; give all \
         workers the same world size (or none), or use another rendezvous"
    )]
    Mismatch {
        /// What this worker was told.
        mine: String,
        /// What the group is.
        group: String,
    },
    /// Two workers have the same name. If the group is only coming together, all that wait for it are
    /// told.
    #[error(
        "two workers are called {name:?}: worker {first} and worker {second}; give each worker a name \
         of its own"
    )]
    DuplicateName {
        /// The name.
        name: String,
        /// The id (rank) of the worker that had the name first.
        first: u32,
        /// The id (rank) of the other one.
        second: u32,
    },
    /// Two workers have the same rank. If the group is only coming together, all that wait for it are
    /// told.
    #[error(
        "two workers have rank {rank}: {first:?} and {second:?}; give each worker a rank of its own"
    )]
    DuplicateRank {
        /// The rank.
        rank: u32,
        /// The name of the worker that had the rank first.
        first: String,
        /// The name of the other one.
        second: String,
    },
    /// A worker with this name, and rank if it has one, runs already. If the group is only coming
    /// together, all that wait for it are told.
    #[error(
        "a worker called {name:?} is running already, at {address}: end it first, or give one of the \
         two another name (and another rank, if they have ranks)"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Where the one that has it listens.
        address: String,
    },
    /// The group's members have another token than this worker.
    #[error(
        "worker {by:?} refuses worker {name:?} because it has another token: give all workers of a \
         group the same one (FARREF_TOKEN, or `.token(..)`)"
    )]
    WrongToken {
        /// This worker's name.
        name: String,
        /// Who refuses it.
        by: String,
    },
    /// The group's members are another user's, and have no token that this worker could prove.
    #[error(
        "worker {by:?} and worker {name:?} are processes of different users, which do not talk over Unix \
         sockets: run all workers of a group as one user, or give them a token (FARREF_TOKEN, or \
         `.token(..)`) to talk over TCP"
    )]
    OtherUser {
        /// This worker's name.
        name: String,
        /// Who does not let it in.
        by: String,
    },
    /// A member of the group and this worker do not take each other's certificates, or one of them has none.
    #[error(
        "worker {name:?} cannot talk to worker {by:?}: {reason}; give all workers of a group certificates of one \
         authority, each with its own name in it (FARREF_TLS_CERT, FARREF_TLS_KEY and FARREF_TLS_CA, or `.tls(..)`; \
         `farref certs` makes them)"
    )]
    Certificate {
        /// This worker's name.
        name: String,
        /// Who does not let it in.
        by: String,
        /// What is wrong.
        reason: String,
    },
    /// The workers that were to found the group do not have one token. All of them are told.
    #[error(
        "these workers have another token than {like:?}: {}; give all workers of a group the same one \
         (FARREF_TOKEN, or `.token(..)`)",
        listed(.unlike.iter().map(|name| format!("{name:?}")))
    )]
    DifferentTokens {
        /// The worker with rank 0.
        like: String,
        /// The workers whose token is another than its.
        unlike: Vec<String>,
    },
    /// The workers that were to found the group cannot talk to each other with the certificates that they have. All of
    /// them are told.
    #[error(
        "worker {one:?} cannot talk to these workers: {}; {reason}: give all workers of a group certificates of one \
         authority, each with its own name in it (FARREF_TLS_CERT, FARREF_TLS_KEY and FARREF_TLS_CA, or `.tls(..)`; \
         `farref certs` makes them)",
        listed(.others.iter().map(|name| format!("{name:?}")))
    )]
    DifferentCertificates {
        /// The first of them, in the order of their ranks.
        one: String,
        /// Those to whom it cannot talk.
        others: Vec<String>,
        /// What is wrong.
        reason: String,
    },
    /// Another worker speaks another version of farref's wire.
    #[error(
        "worker {worker:?} speaks version {theirs} of farref's wire, this worker speaks {ours}: build \
         all workers of a group with one version of farref"
    )]
    WireVersion {
        /// The other worker.
        worker: String,
        /// Its version.
        theirs: u16,
        /// This worker's.
        ours: u16,
    },
    /// Not all workers came in time.
    #[error("{}", MissingText { have, missing, world_size, waited })]
    Missing {
        /// Ranks and names of those that came.
        have: Vec<(u32, String)>,
        /// Ranks of those that did not.
        missing: Vec<u32>,
        /// How many there should be.
        world_size: u32,
        /// How long was waited.
        waited: Duration,
    },
    /// The group was founded without this worker, and no member let it in.
    #[error(
        "no member of the group let worker {name:?} in within {waited:.1?}; asked: {}. Is the group \
         still running, and are its workers' ports open between the hosts?",
        listed(.asked.iter().cloned())
    )]
    NotLetIn {
        /// This worker's name.
        name: String,
        /// Names of the workers that were asked, and where they were.
        asked: Vec<String>,
        /// How long was waited.
        waited: Duration,
    },
    /// The group has as many workers as it may have.
    #[error(
        "worker {name:?} is not let in: the group may have {limit} workers at one time, and it has; end some of them, or \
         start all with a higher `max_members`"
    )]
    GroupFull {
        /// This worker's name.
        name: String,
        /// How many workers the group may have.
        limit: u32,
    },
    /// The store, or somebody who was waited for, took too long.
    #[error(
        "{doing} did not come to an end within {waited:.1?}; are the store's host and the other \
         workers running?"
    )]
    TimedOut {
        /// What was being done.
        doing: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// Another group has taken this group's place in the store.
    #[error(
        "another group ({theirs:?}) meets where this worker's group ({ours:?}) did; restart the \
         workers of one of them with another rendezvous"
    )]
    OtherGroup {
        /// The group this worker belongs to.
        ours: GroupId,
        /// The group in the store.
        theirs: GroupId,
    },
    /// Nobody has published a card for this worker's life.
    #[error("the store knows no address of worker {node}; has it left, or been restarted?")]
    UnknownWorker {
        /// The worker's life.
        node: NodeId,
    },
    /// An entry of the store cannot be read.
    #[error(
        "`{key}` in the store is not what farref puts there ({reason}); does another program, or \
         another version of farref, use this rendezvous?"
    )]
    Corrupt {
        /// The key.
        key: String,
        /// What is wrong with its value.
        reason: String,
    },
    /// No address of this host leads to the rendezvous.
    #[error(
        "cannot find the address under which {host} sees this worker: {source}; set \
         FARREF_ADVERTISE to an address of this host"
    )]
    NoAddress {
        /// The host that was to be reached.
        host: String,
        /// What the system said.
        source: io::Error,
    },
    /// The system gave no random numbers.
    #[error("the system's source of random numbers failed")]
    NoRandomness,
    /// The store failed.
    #[error("{doing}: {source}")]
    Store {
        /// What was being done.
        doing: &'static str,
        /// What the store said.
        source: StoreError,
    },
}

impl RendezvousError {
    /// Whether the group that was to be entered is over, so that the next can be.
    pub fn is_ended(&self) -> bool {
        let Self::Store { source, .. } = self else {
            return false;
        };
        matches!(source, StoreError::Ended { .. })
    }

    /// Whether it has gone wrong for all that wait for the group, and not for this worker alone.
    pub(crate) fn concerns_all(&self) -> bool {
        match self {
            Self::Missing { have, .. } => have.len() > 1,
            other => other.is_conflict(),
        }
    }

    /// Whether workers of one group do not go together.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(
            self,
            Self::DuplicateName { .. }
                | Self::DuplicateRank { .. }
                | Self::NameTaken { .. }
                | Self::DifferentTokens { .. }
                | Self::DifferentCertificates { .. }
                | Self::WireVersion { .. }
        )
    }
}

impl From<StoreError> for RendezvousError {
    fn from(source: StoreError) -> Self {
        Self::Store {
            doing: "reaching the rendezvous",
            source,
        }
    }
}

/// What stands at `key` in the store is not what farref puts there.
pub(crate) fn corrupt(key: &str, reason: &str) -> RendezvousError {
    RendezvousError::Corrupt {
        key: key.into(),
        reason: reason.into(),
    }
}

struct Maybe<'a>(&'a Option<u32>);

impl fmt::Display for Maybe<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => number.fmt(f),
            None => f.write_str("(none)"),
        }
    }
}

/// Names who is there and who is not, a few of each.
struct MissingText<'a> {
    have: &'a [(u32, String)],
    missing: &'a [u32],
    world_size: &'a u32,
    waited: &'a Duration,
}

impl fmt::Display for MissingText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            have,
            missing,
            world_size,
            waited,
        } = self;
        let missing = listed(missing.iter().map(u32::to_string));
        let have = listed(have.iter().map(|(rank, name)| format!("{rank} ({name})")));
        write!(
            f,
            "of {world_size} workers, rank {missing} did not come within {waited:.1?}; rank {have} \
             did. Check that every rank was started, that none has failed, and that all use the \
             same rendezvous and world size"
        )
    }
}

fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    const SHOWN: usize = 16;
    let more = items.len().saturating_sub(SHOWN);
    let shown: Vec<String> = items.take(SHOWN).collect();
    match more {
        0 if shown.is_empty() => "(none)".into(),
        0 => shown.join(", "),
        _ => format!("{} and {more} more", shown.join(", ")),
    }
}
