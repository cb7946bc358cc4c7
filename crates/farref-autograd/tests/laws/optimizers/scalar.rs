//! The formulas again, for one number.

use farref_autograd::optim::OptimizerConfig;

/// The formulas as the papers and PyTorch's documentation have them, for one number.
#[derive(Default)]
pub(crate) struct Scalar {
    steps: i32,
    first: f64,
    second: f64,
    third: f64,
}

impl Scalar {
    pub(crate) fn step(&mut self, config: &OptimizerConfig, p: f64, mut g: f64) -> f64 {
        self.steps += 1;
        match config {
            OptimizerConfig::Sgd(s) => {
                g += s.weight_decay * p;
                if s.momentum != 0.0 {
                    self.first = if self.steps == 1 {
                        g
                    } else {
                        s.momentum * self.first + (1.0 - s.dampening) * g
                    };
                    g = if s.nesterov {
                        g + s.momentum * self.first
                    } else {
                        self.first
                    };
                }
                p - s.learning_rate * g
            }
            OptimizerConfig::Adam(s) => {
                let g = g + s.weight_decay * p;
                self.adam(p, g, s.learning_rate, s.betas, s.eps, s.amsgrad)
            }
            OptimizerConfig::AdamW(s) => {
                let p = p - s.learning_rate * s.weight_decay * p;
                self.adam(p, g, s.learning_rate, s.betas, s.eps, s.amsgrad)
            }
            OptimizerConfig::Adagrad(s) => {
                if self.steps == 1 {
                    self.first = s.initial_accumulator_value;
                }
                g += s.weight_decay * p;
                let rate = s.learning_rate / (1.0 + f64::from(self.steps - 1) * s.lr_decay);
                self.first += g * g;
                p - rate * g / (self.first.sqrt() + s.eps)
            }
            OptimizerConfig::RmsProp(s) => {
                g += s.weight_decay * p;
                self.first = s.alpha * self.first + (1.0 - s.alpha) * g * g;
                let mut size = self.first;
                if s.centered {
                    self.second = s.alpha * self.second + (1.0 - s.alpha) * g;
                    size -= self.second * self.second;
                }
                let direction = g / (size.sqrt() + s.eps);
                if s.momentum > 0.0 {
                    self.third = s.momentum * self.third + direction;
                    p - s.learning_rate * self.third
                } else {
                    p - s.learning_rate * direction
                }
            }
            other => panic!("no formula for {other:?}"),
        }
    }

    fn adam(&mut self, p: f64, g: f64, lr: f64, betas: (f64, f64), eps: f64, ams: bool) -> f64 {
        self.first = betas.0 * self.first + (1.0 - betas.0) * g;
        self.second = betas.1 * self.second + (1.0 - betas.1) * g * g;
        self.third = self.third.max(self.second);
        let first = self.first / (1.0 - betas.0.powi(self.steps));
        let second = if ams { self.third } else { self.second };
        let second = second / (1.0 - betas.1.powi(self.steps));
        p - lr * first / (second.sqrt() + eps)
    }
}
