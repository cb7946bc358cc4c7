//! What an optimizer is to do.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Which optimizer, and its settings.
///
/// ```
/// use farref_autograd::optim::{AdamW, OptimizerConfig, Sgd};
///
/// let sgd: OptimizerConfig = Sgd::new(0.1).momentum(0.9).nesterov(true).into();
/// assert_eq!(sgd.learning_rate(), 0.1);
/// let adamw: OptimizerConfig = AdamW::default().weight_decay(0.1).into(); // otherwise as in PyTorch
/// assert_eq!(adamw.learning_rate(), 1e-3);
/// ```
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum OptimizerConfig {
    /// Stochastic gradient descent.
    Sgd(Sgd),
    /// Adam.
    Adam(Adam),
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
    /// Adagrad.
    Adagrad(Adagrad),
    /// RMSprop.
    RmsProp(RmsProp),
}

/// Declares the settings of an optimizer: fields with PyTorch's defaults, and a method each to change them.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $name:ident {
            $( $(#[$field_meta:meta])* $field:ident: $type:ty = $default:expr, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
        #[non_exhaustive]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $type, )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* }
            }
        }

        impl $name {
            /// With this learning rate, and PyTorch's defaults for the rest.
            pub fn new(learning_rate: f64) -> Self {
                Self::default().learning_rate(learning_rate)
            }

            $(
                $(#[$field_meta])*
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }

        impl From<$name> for OptimizerConfig {
            fn from(settings: $name) -> Self {
                Self::$name(settings)
            }
        }
    };
}

settings! {
    /// Stochastic gradient descent, `torch.optim.SGD`.
    ///
    /// ```text
    /// g = g + weight_decay * p
    /// b = g                                   at the first step
    /// b = momentum * b + (1 - dampening) * g  at the others
    /// p = p - lr * (g + momentum * b if nesterov else b)
    /// ```
    Sgd {
        /// How far a step goes.
        learning_rate: f64 = 1e-3,
        /// How much of the former steps a step keeps.
        momentum: f64 = 0.0,
        /// How much less of the gradient goes into the momentum.
        dampening: f64 = 0.0,
        /// Whether the step looks ahead (Nesterov's momentum).
        nesterov: bool = false,
        /// How strongly parameters are drawn to zero.
        weight_decay: f64 = 0.0,
    }
}

settings! {
    /// Adam, `torch.optim.Adam`.
    ///
    /// ```text
    /// g = g + weight_decay * p
    /// m = m + (1 - beta1) * (g - m)
    /// v = beta2 * v + (1 - beta2) * g * g     (with amsgrad, the greatest v so far is used below)
    /// p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
    /// ```
    Adam {
        /// How far a step goes.
        learning_rate: f64 = 1e-3,
        /// How slowly the averages of the gradient and of its square forget.
        betas: (f64, f64) = (0.9, 0.999),
        /// Added to the denominator.
        eps: f64 = 1e-8,
        /// How strongly parameters are drawn to zero, by way of the gradient.
        weight_decay: f64 = 0.0,
        /// Whether the greatest average of squares so far is used (AMSGrad).
        amsgrad: bool = false,
    }
}

settings! {
    /// Adam with decoupled weight decay, `torch.optim.AdamW`: `p = p * (1 - lr * weight_decay)`, then as
    /// [`Adam`] without weight decay.
    AdamW {
        /// How far a step goes.
        learning_rate: f64 = 1e-3,
        /// How slowly the averages of the gradient and of its square forget.
        betas: (f64, f64) = (0.9, 0.999),
        /// Added to the denominator.
        eps: f64 = 1e-8,
        /// How strongly parameters are drawn to zero, past the gradient.
        weight_decay: f64 = 1e-2,
        /// Whether the greatest average of squares so far is used (AMSGrad).
        amsgrad: bool = false,
    }
}

settings! {
    /// Adagrad, `torch.optim.Adagrad`.
    ///
    /// ```text
    /// g = g + weight_decay * p
    /// s = s + g * g
    /// p = p - lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
    /// ```
    Adagrad {
        /// How far a step goes.
        learning_rate: f64 = 1e-2,
        /// How fast the learning rate falls.
        lr_decay: f64 = 0.0,
        /// How strongly parameters are drawn to zero.
        weight_decay: f64 = 0.0,
        /// What the sum of squares begins with.
        initial_accumulator_value: f64 = 0.0,
        /// Added to the denominator.
        eps: f64 = 1e-10,
    }
}

settings! {
    /// RMSprop, `torch.optim.RMSprop`.
    ///
    /// ```text
    /// g = g + weight_decay * p
    /// v = alpha * v + (1 - alpha) * g * g
    /// a = a + (1 - alpha) * (g - a)           if centered
    /// d = sqrt(v - a * a if centered else v) + eps
    /// b = momentum * b + g / d                if there is momentum
    /// p = p - lr * (b if there is momentum else g / d)
    /// ```
    RmsProp {
        /// How far a step goes.
        learning_rate: f64 = 1e-2,
        /// How slowly the averages forget.
        alpha: f64 = 0.99,
        /// Added to the denominator.
        eps: f64 = 1e-8,
        /// How strongly parameters are drawn to zero.
        weight_decay: f64 = 0.0,
        /// How much of the former steps a step keeps.
        momentum: f64 = 0.0,
        /// Whether the gradient is divided by its deviation instead of its size.
        centered: bool = false,
    }
}

impl OptimizerConfig {
    /// How far a step goes.
    pub fn learning_rate(&self) -> f64 {
        match self {
            Self::Sgd(settings) => settings.learning_rate,
            Self::Adam(settings) => settings.learning_rate,
            Self::AdamW(settings) => settings.learning_rate,
            Self::Adagrad(settings) => settings.learning_rate,
            Self::RmsProp(settings) => settings.learning_rate,
        }
    }

    pub(crate) fn learning_rate_mut(&mut self) -> &mut f64 {
        match self {
            Self::Sgd(settings) => &mut settings.learning_rate,
            Self::Adam(settings) => &mut settings.learning_rate,
            Self::AdamW(settings) => &mut settings.learning_rate,
            Self::Adagrad(settings) => &mut settings.learning_rate,
            Self::RmsProp(settings) => &mut settings.learning_rate,
        }
    }

    /// Whether the settings make sense: what PyTorch refuses is refused.
    pub fn check(&self) -> Result<()> {
        not_negative("learning_rate", self.learning_rate())?;
        match self {
            Self::Sgd(settings) => {
                not_negative("momentum", settings.momentum)?;
                not_negative("weight_decay", settings.weight_decay)?;
                if settings.nesterov && (settings.momentum == 0.0 || settings.dampening != 0.0) {
                    return Err(Error::Invalid(
                        "nesterov needs a momentum and no dampening".to_owned(),
                    ));
                }
                Ok(())
            }
            &Self::Adam(Adam {
                betas,
                eps,
                weight_decay,
                ..
            })
            | &Self::AdamW(AdamW {
                betas,
                eps,
                weight_decay,
                ..
            }) => {
                below_one("the first of betas", betas.0)?;
                below_one("the second of betas", betas.1)?;
                not_negative("eps", eps)?;
                not_negative("weight_decay", weight_decay)
            }
            Self::Adagrad(settings) => {
                not_negative("lr_decay", settings.lr_decay)?;
                not_negative("weight_decay", settings.weight_decay)?;
                let initial = settings.initial_accumulator_value;
                not_negative("initial_accumulator_value", initial)?;
                not_negative("eps", settings.eps)
            }
            Self::RmsProp(settings) => {
                not_negative("alpha", settings.alpha)?;
                not_negative("eps", settings.eps)?;
                not_negative("weight_decay", settings.weight_decay)?;
                not_negative("momentum", settings.momentum)
            }
        }
    }
}

/// Also refuses what is no number.
pub(crate) fn not_negative(name: &str, value: f64) -> Result<()> {
    if value >= 0.0 {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{name} is {value}, and must be zero or more"
    )))
}

fn below_one(name: &str, value: f64) -> Result<()> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{name} is {value}, and must be at least zero and less than one"
    )))
}
