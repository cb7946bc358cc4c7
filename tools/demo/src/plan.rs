//! What is trained, by how many, for how long.

use std::ops::Range;

use farref_autograd::nn::Generator;
use serde::{Deserialize, Serialize};

use super::arguments::{Arguments, Transport};

/// How many points a batch has.
pub(super) const BATCH: usize = 240;

/// Everything that the distributed training and the one in one process have in common.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) owners: u32,
    pub(super) trainers: u32,
    pub(super) steps: u32,
    pub(super) seed: u64,
    pub(super) kill_one: bool,
    pub(super) tcp: bool,
}

impl Plan {
    pub(super) fn new(arguments: &Arguments) -> Self {
        Self {
            owners: arguments.owners,
            trainers: arguments.trainers,
            steps: arguments.steps,
            seed: arguments.seed,
            kill_one: arguments.kill_one,
            tcp: arguments.transport == Transport::Tcp,
        }
    }

    /// What the workers are called, by rank. The first is this process.
    pub(super) fn names(&self) -> Vec<String> {
        let owners = (0..self.owners).map(|n| format!("owner{n}"));
        let trainers = (0..self.trainers).map(|n| format!("trainer{n}"));
        ["conductor".to_owned()]
            .into_iter()
            .chain(owners)
            .chain(trainers)
            .collect()
    }

    /// How many layers the model has: at least one for each owner.
    pub(super) fn layers(&self) -> u32 {
        self.owners.max(3)
    }

    /// Which layers an owner has.
    pub(super) fn layers_of(&self, owner: u32) -> Range<u32> {
        let first = |owner| owner * self.layers() / self.owners;
        first(owner)..first(owner + 1)
    }

    /// The points of a step's batch, in one part for each trainer that there was at the beginning. Who
    /// computes a part makes no difference.
    pub(super) fn parts(&self, step: u32, points: usize) -> Vec<Vec<u32>> {
        let mut generator = Generator::new(self.seed ^ (u64::from(step) << 32) ^ 0x000b_a7c4);
        let batch: Vec<u32> = (0..BATCH)
            .map(|_| (generator.next_u64() % points as u64) as u32)
            .collect();
        let size = BATCH.div_ceil(self.trainers as usize);
        batch.chunks(size).map(<[u32]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(owners: u32, trainers: u32) -> Plan {
        Plan {
            owners,
            trainers,
            steps: 1,
            seed: 7,
            kill_one: false,
            tcp: false,
        }
    }

    #[test]
    fn every_layer_has_exactly_one_owner_and_every_owner_a_layer() {
        for owners in 1..=16 {
            let plan = plan(owners, 2);
            let layers: Vec<u32> = (0..owners)
                .flat_map(|owner| plan.layers_of(owner))
                .collect();
            assert_eq!(layers, (0..plan.layers()).collect::<Vec<_>>());
            assert!((0..owners).all(|owner| !plan.layers_of(owner).is_empty()));
        }
    }

    #[test]
    fn a_batch_is_the_same_however_many_share_it() {
        for trainers in 1..=16 {
            let parts = plan(2, trainers).parts(3, 600);
            assert_eq!(parts.len(), trainers as usize);
            assert_eq!(parts.concat(), plan(2, 1).parts(3, 600).concat());
        }
    }
}
