//! The formulas: from a parameter, its gradient and what the optimizer remembers, to the next of each.
//!
//! Everything is on plain tensors, without a graph, and nothing is written in place: a step that fails
//! half-way has changed nothing. The order of operations is PyTorch's (`torch/optim`, the variants for
//! single tensors), including `lerp` and the quotients.

use candle_core::{Result, Tensor};

use super::config::{Adagrad, Adam, AdamW, OptimizerConfig, RmsProp, Sgd};

/// What an optimizer remembers of one parameter.
#[derive(Clone, Debug)]
pub(crate) struct ParameterState {
    /// How many steps there have been.
    pub(crate) step: u64,
    /// As many tensors as [`slots`] names, in that order.
    pub(crate) slots: Vec<Tensor>,
}

/// The names of what is remembered of a parameter: those that PyTorch uses.
pub(crate) fn slots(config: &OptimizerConfig) -> Vec<&'static str> {
    match config {
        OptimizerConfig::Sgd(settings) if settings.momentum == 0.0 => Vec::new(),
        OptimizerConfig::Sgd(_) => vec!["momentum_buffer"],
        OptimizerConfig::Adam(Adam { amsgrad, .. })
        | OptimizerConfig::AdamW(AdamW { amsgrad, .. }) => {
            let mut slots = vec!["exp_avg", "exp_avg_sq"];
            if *amsgrad {
                slots.push("max_exp_avg_sq");
            }
            slots
        }
        OptimizerConfig::Adagrad(_) => vec!["sum"],
        OptimizerConfig::RmsProp(settings) => {
            let mut slots = vec!["square_avg"];
            if settings.centered {
                slots.push("grad_avg");
            }
            if settings.momentum > 0.0 {
                slots.push("momentum_buffer");
            }
            slots
        }
    }
}

impl ParameterState {
    /// Before the first step.
    pub(crate) fn new(config: &OptimizerConfig, parameter: &Tensor) -> Result<Self> {
        let zeros = parameter.zeros_like()?;
        let first = match config {
            OptimizerConfig::Adagrad(settings) => {
                zeros.affine(1.0, settings.initial_accumulator_value)?
            }
            _ => zeros,
        };
        let slots = vec![first; slots(config).len()];
        Ok(Self { step: 0, slots })
    }

    fn slot(&self, index: usize) -> Result<&Tensor> {
        match self.slots.get(index) {
            Some(slot) => Ok(slot),
            None => candle_core::bail!("an optimizer's state has no entry {index}"),
        }
    }
}

/// The next parameter and state.
pub(crate) fn update(
    config: &OptimizerConfig,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &ParameterState,
) -> Result<(Tensor, ParameterState)> {
    let step = state.step + 1;
    let (next, slots) = match config {
        OptimizerConfig::Sgd(settings) => sgd(settings, parameter, gradient, state)?,
        OptimizerConfig::Adam(settings) => {
            let gradient = decayed(gradient, parameter, settings.weight_decay)?;
            adam(settings, parameter, &gradient, state, step)?
        }
        OptimizerConfig::AdamW(settings) => {
            let parameter =
                parameter.affine(1.0 - settings.learning_rate * settings.weight_decay, 0.0)?;
            let rest = Adam {
                learning_rate: settings.learning_rate,
                betas: settings.betas,
                eps: settings.eps,
                weight_decay: 0.0,
                amsgrad: settings.amsgrad,
            };
            adam(&rest, &parameter, gradient, state, step)?
        }
        OptimizerConfig::Adagrad(settings) => adagrad(settings, parameter, gradient, state, step)?,
        OptimizerConfig::RmsProp(settings) => rms_prop(settings, parameter, gradient, state)?,
    };
    Ok((next, ParameterState { step, slots }))
}

fn sgd(
    settings: &Sgd,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &ParameterState,
) -> Result<(Tensor, Vec<Tensor>)> {
    let mut gradient = decayed(gradient, parameter, settings.weight_decay)?;
    let mut slots = Vec::new();
    if settings.momentum != 0.0 {
        let buffer = if state.step == 0 {
            gradient.clone()
        } else {
            let kept = state.slot(0)?.affine(settings.momentum, 0.0)?;
            plus(&kept, &gradient, 1.0 - settings.dampening)?
        };
        gradient = if settings.nesterov {
            plus(&gradient, &buffer, settings.momentum)?
        } else {
            buffer.clone()
        };
        slots.push(buffer);
    }
    let next = plus(parameter, &gradient, -settings.learning_rate)?;
    Ok((next, slots))
}

fn adam(
    settings: &Adam,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &ParameterState,
    step: u64,
) -> Result<(Tensor, Vec<Tensor>)> {
    let (beta1, beta2) = settings.betas;
    let average = lerp(state.slot(0)?, gradient, 1.0 - beta1)?;
    let kept = state.slot(1)?.affine(beta2, 0.0)?;
    let squares = plus_product(&kept, gradient, gradient, 1.0 - beta2)?;
    let correction1 = 1.0 - beta1.powf(step as f64);
    let correction2 = 1.0 - beta2.powf(step as f64);
    let mut slots = vec![average.clone(), squares.clone()];
    let squares = if settings.amsgrad {
        let greatest = state.slot(2)?.maximum(&squares)?;
        slots.push(greatest.clone());
        greatest
    } else {
        squares
    };
    let root = squares.sqrt()?;
    let divisor = root.broadcast_div(&constant(&root, correction2.sqrt())?)?;
    let divisor = divisor.affine(1.0, settings.eps)?;
    let size = settings.learning_rate / correction1;
    let next = plus_quotient(parameter, &average, &divisor, -size)?;
    Ok((next, slots))
}

fn adagrad(
    settings: &Adagrad,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &ParameterState,
    step: u64,
) -> Result<(Tensor, Vec<Tensor>)> {
    let gradient = decayed(gradient, parameter, settings.weight_decay)?;
    let rate = settings.learning_rate / (1.0 + (step - 1) as f64 * settings.lr_decay);
    let sum = plus_product(state.slot(0)?, &gradient, &gradient, 1.0)?;
    let divisor = sum.sqrt()?.affine(1.0, settings.eps)?;
    let next = plus_quotient(parameter, &gradient, &divisor, -rate)?;
    Ok((next, vec![sum]))
}

fn rms_prop(
    settings: &RmsProp,
    parameter: &Tensor,
    gradient: &Tensor,
    state: &ParameterState,
) -> Result<(Tensor, Vec<Tensor>)> {
    let gradient = decayed(gradient, parameter, settings.weight_decay)?;
    let kept = state.slot(0)?.affine(settings.alpha, 0.0)?;
    let squares = plus_product(&kept, &gradient, &gradient, 1.0 - settings.alpha)?;
    let mut slots = vec![squares.clone()];
    let size = if settings.centered {
        let average = lerp(state.slot(1)?, &gradient, 1.0 - settings.alpha)?;
        slots.push(average.clone());
        plus_product(&squares, &average, &average, -1.0)?.sqrt()?
    } else {
        squares.sqrt()?
    };
    let divisor = size.affine(1.0, settings.eps)?;
    let next = if settings.momentum > 0.0 {
        let kept = state.slot(slots.len())?.affine(settings.momentum, 0.0)?;
        let buffer = plus_quotient(&kept, &gradient, &divisor, 1.0)?;
        slots.push(buffer.clone());
        plus(parameter, &buffer, -settings.learning_rate)?
    } else {
        plus_quotient(parameter, &gradient, &divisor, -settings.learning_rate)?
    };
    Ok((next, slots))
}

/// The gradient with weight decay.
fn decayed(gradient: &Tensor, parameter: &Tensor, weight_decay: f64) -> Result<Tensor> {
    if weight_decay == 0.0 {
        return Ok(gradient.clone());
    }
    plus(gradient, parameter, weight_decay)
}

/// `a + alpha * b`
fn plus(a: &Tensor, b: &Tensor, alpha: f64) -> Result<Tensor> {
    a.add(&b.affine(alpha, 0.0)?)
}

/// `a + (value * b) * c`
fn plus_product(a: &Tensor, b: &Tensor, c: &Tensor, value: f64) -> Result<Tensor> {
    a.add(&b.affine(value, 0.0)?.mul(c)?)
}

/// `a + (value * b) / c`
fn plus_quotient(a: &Tensor, b: &Tensor, c: &Tensor, value: f64) -> Result<Tensor> {
    a.add(&b.affine(value, 0.0)?.div(c)?)
}

/// From `a` towards `b`; the nearer end is exact, as in PyTorch.
fn lerp(a: &Tensor, b: &Tensor, weight: f64) -> Result<Tensor> {
    let way = b.sub(a)?;
    if weight < 0.5 {
        plus(a, &way, weight)
    } else {
        plus(b, &way, -(1.0 - weight))
    }
}

/// A scalar of the type of `like`. (candle divides by a number by multiplying with its inverse.)
fn constant(like: &Tensor, value: f64) -> Result<Tensor> {
    Tensor::new(value, like.device())?.to_dtype(like.dtype())
}
