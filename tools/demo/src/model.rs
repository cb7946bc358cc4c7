//! The model: linear layers with tanh between them, cut into parts.

use std::ops::Range;

use farref_autograd::candle::DType;
use farref_autograd::nn::{Generator, Linear};
use farref_autograd::{Hosted, Module, Parameter, Result, Tensor};

use super::plan::Plan;
use super::spiral::ARMS;

const WIDTH: usize = 48;

/// Some layers of the model, one after the other.
pub(super) struct Part {
    layers: Vec<Linear>,
    /// Whether the last layer of the model is among them: its scores stay as they are.
    is_last: bool,
}

impl Part {
    /// Layers begin the same wherever they are made.
    pub(super) fn new(plan: &Plan, layers: Range<u32>) -> Result<Self> {
        let is_last = layers.end == plan.layers();
        let layers = layers.map(|layer| {
            let inputs = if layer == 0 { 2 } else { WIDTH };
            let outputs = if layer + 1 == plan.layers() {
                ARMS
            } else {
                WIDTH
            };
            let mut generator = Generator::new(plan.seed ^ (u64::from(layer) << 16));
            Linear::new(inputs, outputs, DType::F64, &mut generator)
        });
        Ok(Self {
            layers: layers.collect::<Result<_>>()?,
            is_last,
        })
    }
}

impl Module for Part {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let mut x = input.clone();
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x)?;
            if !(self.is_last && index + 1 == self.layers.len()) {
                x = x.tanh()?.into();
            }
        }
        Ok(x)
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        let layers = self.layers.iter().enumerate();
        layers
            .flat_map(|(index, layer)| {
                let parameters = layer.parameters().into_iter();
                parameters.map(move |(name, parameter)| (format!("{index}.{name}"), parameter))
            })
            .collect()
    }
}

/// Makes the part of the model that an owner has, there.
#[farref::remote]
pub(super) fn part_of(plan: Plan, owner: u32) -> Result<Hosted> {
    Ok(Hosted::new(Part::new(&plan, plan.layers_of(owner))?))
}
