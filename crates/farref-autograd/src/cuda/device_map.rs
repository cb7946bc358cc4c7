//! Where tensors arrive.

use std::collections::HashMap;

/// Where a tensor is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// On the CPU.
    Cpu,
    /// On the CUDA device with this number, as the receiver counts them.
    Cuda(u32),
}

/// Where tensors of each CUDA device of this worker arrive on another worker.
///
/// What is not said goes to the device with the same number. Answers on CUDA devices, and gradients, come back the same way, unless the other
/// worker has a map of its own. A tensor on the CPU arrives on the CPU, also an answer to what was sent there by a map.
///
/// ```
/// use farref_autograd::cuda::{DeviceMap, Target};
///
/// let map = DeviceMap::new().to_cuda(0, 1).to_cpu(1);
/// assert_eq!(map.target(0), Target::Cuda(1));
/// assert_eq!(map.target(1), Target::Cpu);
/// assert_eq!(map.target(2), Target::Cuda(2));
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeviceMap {
    each: HashMap<u32, Target>,
    all: Option<Target>,
}

impl DeviceMap {
    /// Every device to the one with the same number.
    pub fn new() -> Self {
        Self::default()
    }

    /// All of them to the CPU, but for those of which something else is said.
    pub fn all_to_cpu() -> Self {
        Self {
            each: HashMap::new(),
            all: Some(Target::Cpu),
        }
    }

    /// Tensors of `cuda:here` arrive on `cuda:there`.
    pub fn to_cuda(mut self, here: u32, there: u32) -> Self {
        self.each.insert(here, Target::Cuda(there));
        self
    }

    /// Tensors of `cuda:here` arrive on the CPU.
    pub fn to_cpu(mut self, here: u32) -> Self {
        self.each.insert(here, Target::Cpu);
        self
    }

    /// Where tensors of `cuda:here` arrive.
    pub fn target(&self, here: u32) -> Target {
        let said = self.each.get(&here).copied().or(self.all);
        said.unwrap_or(Target::Cuda(here))
    }

    /// The way back: which device here a tensor is for that the peer has on `cuda:there`, if this map sends one there.
    pub(super) fn back(&self, there: u32) -> Option<Target> {
        let mut here = self.each.iter();
        let found = here.find(|&(_, &target)| target == Target::Cuda(there));
        found.map(|(&here, _)| Target::Cuda(here))
    }

    /// As it is told to the peer.
    pub(super) fn pairs(&self) -> Vec<(u32, u32)> {
        let each = self.each.iter();
        let pairs = each.filter_map(|(&here, &target)| match target {
            Target::Cuda(there) => Some((here, there)),
            Target::Cpu => None,
        });
        pairs.collect()
    }

    /// What the peer told of its own.
    pub(super) fn of_pairs(pairs: &[(u32, u32)]) -> Self {
        let mut map = Self::new();
        for &(here, there) in pairs {
            map = map.to_cuda(here, there);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_says_the_way_back() {
        let map = DeviceMap::new().to_cuda(0, 3).to_cpu(1);
        assert_eq!(map.back(3), Some(Target::Cuda(0)));
        assert_eq!(map.back(1), None);
        let told = DeviceMap::of_pairs(&map.pairs());
        assert_eq!(told.target(0), Target::Cuda(3));
        assert_eq!(told.back(3), Some(Target::Cuda(0)));
    }
}
