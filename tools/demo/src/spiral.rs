//! The data: points on three arms of a spiral, with some noise.

use farref_autograd::nn::Generator;
use farref_autograd::{Result, Tensor};

/// How many arms there are.
pub(super) const ARMS: usize = 3;
const POINTS_PER_ARM: usize = 400;

/// Points of the plane, and the arm that each lies on.
#[derive(Clone, Debug)]
pub(super) struct Spiral {
    pub(super) points: Vec<[f64; 2]>,
    pub(super) arms: Vec<u32>,
}

impl Spiral {
    /// The same for the same seed, on every worker.
    pub(super) fn new(seed: u64) -> Self {
        let mut generator = Generator::new(seed);
        let mut spiral = Self {
            points: Vec::new(),
            arms: Vec::new(),
        };
        for arm in 0..ARMS {
            for point in 0..POINTS_PER_ARM {
                let radius = 0.05 + 0.95 * point as f64 / POINTS_PER_ARM as f64;
                // The sum of uniform numbers is as good as a normal one here.
                let noise: f64 = (0..4).map(|_| generator.next_f64() - 0.5).sum();
                let turn = arm as f64 * std::f64::consts::TAU / ARMS as f64;
                let angle = turn + 4.5 * radius + 0.2 * noise;
                spiral
                    .points
                    .push([radius * angle.cos(), radius * angle.sin()]);
                spiral.arms.push(arm as u32);
            }
        }
        spiral
    }

    pub(super) fn len(&self) -> usize {
        self.points.len()
    }

    /// Some of the points and their arms, as a model wants them.
    pub(super) fn select(&self, indices: &[u32]) -> Result<(Tensor, Tensor)> {
        let chosen = || indices.iter().map(|&index| index as usize);
        let points: Vec<[f64; 2]> = chosen()
            .filter_map(|index| self.points.get(index).copied())
            .collect();
        let arms: Vec<u32> = chosen()
            .filter_map(|index| self.arms.get(index).copied())
            .collect();
        let arms = Tensor::from_vec(arms, points.len())?;
        Ok((tensor_of(&points)?, arms))
    }
}

/// Points as rows of a tensor.
pub(super) fn tensor_of(points: &[[f64; 2]]) -> Result<Tensor> {
    Tensor::from_vec(points.concat(), (points.len(), 2))
}

/// The arm with the highest score, of each row.
pub(super) fn decide(scores: &Tensor) -> Result<Vec<u32>> {
    Ok(scores.argmax(1)?.to_vec1::<u32>()?)
}
