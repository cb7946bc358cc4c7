//! Why a group did not come together, told to all that wait for it.
//!
//! Whoever finds out publishes a notice in the store. A worker heeds a notice that it did not find there when
//! it came: what was there before concerned an earlier attempt.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::RendezvousError;
use crate::random;

/// The first byte of an encoded notice.
const VERSION: u8 = 2;

/// Why a group did not come together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum FailureCause {
    /// Not all came in time.
    Missing {
        world_size: u32,
        /// Ranks of those that did not come.
        missing: Vec<u32>,
        /// Ranks and names of those that did.
        have: Vec<(u32, String)>,
    },
    /// Two ranks have one name.
    Name {
        name: String,
        first: u32,
        second: u32,
    },
    /// Two names have one rank.
    Rank {
        rank: u32,
        first: String,
        second: String,
    },
    /// One worker was started twice.
    Twice { name: String, address: String },
    /// The founders' tokens are not all alike.
    Tokens { like: String, unlike: Vec<String> },
    /// The founders' certificates do not go together.
    Certificates {
        one: String,
        others: Vec<String>,
        reason: String,
    },
    /// The founders do not speak one version of the wire: two of them, with their versions.
    Wire {
        one: (String, u16),
        other: (String, u16),
    },
}

/// What is published in the store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct FailureNotice {
    /// Tells it from an earlier one with the same cause.
    number: u64,
    pub(super) cause: FailureCause,
}

impl FailureNotice {
    pub(super) fn new(cause: FailureCause) -> Result<Self, RendezvousError> {
        let mut bytes = [0; 8];
        random::fill(&mut bytes).map_err(|_| RendezvousError::NoRandomness)?;
        let number = u64::from_le_bytes(bytes);
        Ok(Self { number, cause })
    }

    pub(super) fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_extend(self, vec![VERSION])
    }

    /// Nothing if it cannot be read: a notice is a courtesy.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        postcard::from_bytes(bytes.strip_prefix(&[VERSION])?).ok()
    }
}

impl FailureCause {
    /// What the others are to be told of an error of this worker's, if it concerns them.
    pub(super) fn of(error: &RendezvousError, me: &str) -> Option<Self> {
        Some(match error {
            RendezvousError::Missing {
                have,
                missing,
                world_size,
                ..
            } => Self::Missing {
                world_size: *world_size,
                missing: missing.clone(),
                have: have.clone(),
            },
            RendezvousError::DuplicateName {
                name,
                first,
                second,
            } => Self::Name {
                name: name.clone(),
                first: *first,
                second: *second,
            },
            RendezvousError::DuplicateRank {
                rank,
                first,
                second,
            } => Self::Rank {
                rank: *rank,
                first: first.clone(),
                second: second.clone(),
            },
            RendezvousError::NameTaken { name, address } => Self::Twice {
                name: name.clone(),
                address: address.clone(),
            },
            RendezvousError::DifferentTokens { like, unlike } => Self::Tokens {
                like: like.clone(),
                unlike: unlike.clone(),
            },
            RendezvousError::DifferentCertificates {
                one,
                others,
                reason,
            } => Self::Certificates {
                one: one.clone(),
                others: others.clone(),
                reason: reason.clone(),
            },
            RendezvousError::WireVersion {
                worker,
                theirs,
                ours,
            } => Self::Wire {
                one: (me.to_owned(), *ours),
                other: (worker.clone(), *theirs),
            },
            _ => return None,
        })
    }

    /// What a worker that speaks this version of the wire and has waited so long is told.
    pub(super) fn into_error(self, wire: u16, waited: Duration) -> RendezvousError {
        match self {
            Self::Missing {
                world_size,
                missing,
                have,
            } => RendezvousError::Missing {
                have,
                missing,
                world_size,
                waited,
            },
            Self::Name {
                name,
                first,
                second,
            } => RendezvousError::DuplicateName {
                name,
                first,
                second,
            },
            Self::Rank {
                rank,
                first,
                second,
            } => RendezvousError::DuplicateRank {
                rank,
                first,
                second,
            },
            Self::Twice { name, address } => RendezvousError::NameTaken { name, address },
            Self::Tokens { like, unlike } => RendezvousError::DifferentTokens { like, unlike },
            Self::Certificates {
                one,
                others,
                reason,
            } => RendezvousError::DifferentCertificates {
                one,
                others,
                reason,
            },
            Self::Wire { one, other } => {
                let (worker, theirs) = if one.1 == wire { other } else { one };
                RendezvousError::WireVersion {
                    worker,
                    theirs,
                    ours: wire,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_read_as_it_was_written_and_is_told_from_others() {
        let cause = FailureCause::Name {
            name: "a".into(),
            first: 0,
            second: 2,
        };
        let [one, two] = [0; 2].map(|_| FailureNotice::new(cause.clone()).unwrap());
        assert_ne!(one, two);
        assert_eq!(FailureNotice::decode(&one.encode().unwrap()), Some(one));
        assert_eq!(FailureNotice::decode(b""), None);
        assert_eq!(FailureNotice::decode(b"\x01\xff\xff"), None);
        assert_eq!(FailureNotice::decode(b"\x07"), None);
    }

    /// F4
    #[test]
    fn who_speaks_another_version_hears_of_both() {
        let cause = FailureCause::Wire {
            one: ("old".into(), 3),
            other: ("new".into(), 4),
        };
        for (ours, expected, theirs) in [(3, "new", 4), (4, "old", 3), (5, "old", 3)] {
            let error = cause.clone().into_error(ours, Duration::ZERO);
            let text = error.to_string();
            assert!(
                matches!(error, RendezvousError::WireVersion { worker, .. } if worker == expected)
            );
            for part in [format!("version {theirs} "), format!("speaks {ours}:")] {
                assert!(text.contains(&part), "{text}");
            }
        }
    }
}
