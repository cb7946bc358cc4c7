//! Random numbers, which a simulation draws from its seed.
//!
//! - **RN-1** Numbers come from the system, unless this thread simulates a group: without the feature `simulation` there
//!   is no other source.

/// The system has no random numbers to give.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the system's source of random numbers failed")]
pub struct NoRandomness;

/// Fills `bytes` with numbers that nobody can foresee (RN-1).
pub fn fill(bytes: &mut [u8]) -> Result<(), NoRandomness> {
    #[cfg(feature = "simulation")]
    if seeded::fill(bytes) {
        return Ok(());
    }
    use ring::rand::{SecureRandom as _, SystemRandom};
    SystemRandom::new().fill(bytes).map_err(|_| NoRandomness)
}

#[cfg(feature = "simulation")]
pub use seeded::{draw, with_seed};

#[cfg(feature = "simulation")]
mod seeded {
    use std::cell::Cell;

    thread_local! {
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Does something during which all random numbers of this thread follow from a seed.
    pub fn with_seed<T>(seed: u64, f: impl FnOnce() -> T) -> T {
        struct Restore(Option<u64>);

        impl Drop for Restore {
            fn drop(&mut self) {
                STATE.set(self.0);
            }
        }

        let _restore = Restore(STATE.replace(Some(seed)));
        f()
    }

    /// A number below `below`, or none on a thread that simulates nothing. Of splitmix64.
    pub fn draw(below: u64) -> Option<u64> {
        let state = STATE.try_with(Cell::get).ok()??;
        let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(Some(state));
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // The upper half of the product is below `below`.
        let wide = u128::from(mixed ^ (mixed >> 31)) * u128::from(below.max(1));
        Some((wide >> 64) as u64)
    }

    pub(super) fn fill(bytes: &mut [u8]) -> bool {
        bytes.iter_mut().all(|byte| {
            let drawn = draw(256);
            *byte = drawn.unwrap_or_default() as u8;
            drawn.is_some()
        })
    }
}
