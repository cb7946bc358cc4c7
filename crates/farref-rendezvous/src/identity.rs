//! What a worker's name, rank and id may be.

use crate::error::RendezvousError;

/// Ranks are below this, ids given to workers without a rank are not. PyTorch keeps a worker's id in
/// 16 bits with a sign; half of them for each kind lets every id pass there too.
pub(crate) const MAX_WORLD_SIZE: u32 = 1 << 14;
/// The ids of workers without a rank start here.
pub(crate) const FIRST_UNRANKED: u32 = MAX_WORLD_SIZE;

/// Refuses what cannot be a worker's name.
pub fn check_name(name: &str) -> Result<(), RendezvousError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_:.".contains(c);
    if (1..=127).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(RendezvousError::Name { name: name.into() })
}

/// Refuses a rank and a world size that do not go together.
pub fn check_rank(rank: Option<u32>, world_size: Option<u32>) -> Result<(), RendezvousError> {
    let fits = match (rank, world_size) {
        (Some(rank), Some(size)) => size <= MAX_WORLD_SIZE && rank < size,
        (None, Some(_)) => false,
        (Some(rank), None) => rank < MAX_WORLD_SIZE,
        (None, None) => true,
    };
    match fits {
        true => Ok(()),
        false => Err(RendezvousError::Rank {
            rank,
            world_size,
            limit: MAX_WORLD_SIZE,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_hyphen_and_may_not_be_long_or_strange() {
        for name in ["a", "worker-0", "ps:1.2_x", &"n".repeat(127)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "a/b", "a b", "ü", "a\n", &"n".repeat(128)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
