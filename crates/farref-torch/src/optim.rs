//! PyTorch's `DistributedOptimizer` on parameters of a Rust worker.
//!
//! `DistributedOptimizer(torch.optim.SGD, rrefs, lr=0.1)` asks the owner of some of the references to make an optimizer of
//! them, and later to step it in a context. These are the functions that it calls, under PyTorch's own names, in every
//! program that links the crate: for the optimizers that PyTorch has in a functional form, compiled in earlier versions,
//! and for the others.

use farref::{RRef, Worker};
use farref_autograd::Parameter;
use farref_autograd::optim::{Adagrad, Adam, AdamW, LocalOptimizer, OptimizerConfig, RmsProp, Sgd};

use crate::{PyException, PyValue, torch_context};

/// What any of the optimizers may be given besides its parameters.
#[derive(Debug, Default)]
struct Settings {
    lr: Option<f64>,
    momentum: Option<f64>,
    dampening: Option<f64>,
    weight_decay: Option<f64>,
    nesterov: Option<bool>,
    maximize: Option<bool>,
    betas: Option<(f64, f64)>,
    eps: Option<f64>,
    amsgrad: Option<bool>,
    alpha: Option<f64>,
    centered: Option<bool>,
    lr_decay: Option<f64>,
}

impl Settings {
    /// The optimizer that Python knows under this name, with these settings. What it would not take is refused.
    fn config(mut self, class: &str) -> Result<OptimizerConfig, PyException> {
        if self.maximize.take() == Some(true) {
            return Err(refused("no optimizer here goes uphill (maximize=True)"));
        }
        let name = class.rsplit('.').next().unwrap_or_default();
        let name = name.trim_start_matches("_Functional");
        let config = match name {
            "SGD" => {
                let mut sgd = Sgd::default();
                fill(&mut sgd.learning_rate, &mut self.lr);
                fill(&mut sgd.momentum, &mut self.momentum);
                fill(&mut sgd.dampening, &mut self.dampening);
                fill(&mut sgd.nesterov, &mut self.nesterov);
                fill(&mut sgd.weight_decay, &mut self.weight_decay);
                sgd.into()
            }
            "Adam" => {
                let mut adam = Adam::default();
                fill(&mut adam.learning_rate, &mut self.lr);
                fill(&mut adam.betas, &mut self.betas);
                fill(&mut adam.eps, &mut self.eps);
                fill(&mut adam.weight_decay, &mut self.weight_decay);
                fill(&mut adam.amsgrad, &mut self.amsgrad);
                adam.into()
            }
            "AdamW" => {
                let mut adam = AdamW::default();
                fill(&mut adam.learning_rate, &mut self.lr);
                fill(&mut adam.betas, &mut self.betas);
                fill(&mut adam.eps, &mut self.eps);
                fill(&mut adam.weight_decay, &mut self.weight_decay);
                fill(&mut adam.amsgrad, &mut self.amsgrad);
                adam.into()
            }
            "Adagrad" => {
                let mut adagrad = Adagrad::default();
                fill(&mut adagrad.learning_rate, &mut self.lr);
                fill(&mut adagrad.lr_decay, &mut self.lr_decay);
                fill(&mut adagrad.weight_decay, &mut self.weight_decay);
                fill(&mut adagrad.eps, &mut self.eps);
                adagrad.into()
            }
            "RMSprop" => {
                let mut rmsprop = RmsProp::default();
                fill(&mut rmsprop.learning_rate, &mut self.lr);
                fill(&mut rmsprop.alpha, &mut self.alpha);
                fill(&mut rmsprop.eps, &mut self.eps);
                fill(&mut rmsprop.weight_decay, &mut self.weight_decay);
                fill(&mut rmsprop.momentum, &mut self.momentum);
                fill(&mut rmsprop.centered, &mut self.centered);
                rmsprop.into()
            }
            _ => {
                return Err(refused(format!(
                    "a Rust worker has no optimizer {class}: it has SGD, Adam, AdamW, Adagrad and RMSprop"
                )));
            }
        };
        match self.left() {
            None => Ok(config),
            Some(left) => Err(refused(format!("{name} has no setting {left}"))),
        }
    }

    /// A setting that nobody has taken.
    fn left(&self) -> Option<&'static str> {
        let left = [
            ("lr", self.lr.is_some()),
            ("momentum", self.momentum.is_some()),
            ("dampening", self.dampening.is_some()),
            ("weight_decay", self.weight_decay.is_some()),
            ("nesterov", self.nesterov.is_some()),
            ("betas", self.betas.is_some()),
            ("eps", self.eps.is_some()),
            ("amsgrad", self.amsgrad.is_some()),
            ("alpha", self.alpha.is_some()),
            ("centered", self.centered.is_some()),
            ("lr_decay", self.lr_decay.is_some()),
        ];
        left.into_iter()
            .find(|(_, is_left)| *is_left)
            .map(|(name, _)| name)
    }
}

/// Takes a setting that is given.
fn fill<T>(place: &mut T, given: &mut Option<T>) {
    if let Some(given) = given.take() {
        *place = given;
    }
}

fn refused(text: impl Into<String>) -> PyException {
    PyException::new("TypeError", text)
}

/// Makes an optimizer of parameters of this worker.
async fn optimizer(
    class: PyValue,
    parameters: Vec<RRef<Parameter>>,
    settings: Settings,
) -> Result<RRef<LocalOptimizer>, PyException> {
    let PyValue::Name(class) = class else {
        return Err(refused("the class of an optimizer is expected"));
    };
    let config = settings.config(&class)?;
    let mut here = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        here.push(parameter.local().await?.clone());
    }
    let wrong = |error: farref_autograd::Error| PyException::new("ValueError", error.to_string());
    let optimizer = LocalOptimizer::new(config, here).map_err(wrong)?;
    Ok(me()?.rref_to_object(optimizer)?)
}

/// Replaces the parameters that have gradients in a context.
async fn step(optimizer: RRef<LocalOptimizer>, context: i64) -> Result<(), PyException> {
    let found = torch_context(&me()?, context);
    let missing = || PyException::new("RuntimeError", format!("there is no context {context}"));
    let found = found.ok_or_else(missing)?;
    let stepped = optimizer.local_mut().await?.step(&found);
    stepped.map_err(|error| PyException::new("RuntimeError", error.to_string()))
}

fn me() -> Result<Worker, PyException> {
    Worker::current().ok_or_else(|| PyException::new("RuntimeError", "this is not in a call"))
}

/// Declares a function that makes an optimizer, under a name of PyTorch's. The first of the settings may come by place.
macro_rules! makes_optimizers {
    ($function:ident, $python:literal) => {
        #[farref::remote(python = $python)]
        #[expect(
            clippy::too_many_arguments,
            reason = "what optimizers of PyTorch's may be given"
        )]
        async fn $function(
            optim_cls: PyValue,
            local_params_rref: Vec<RRef<Parameter>>,
            lr: Option<f64>,
            momentum: Option<f64>,
            dampening: Option<f64>,
            weight_decay: Option<f64>,
            nesterov: Option<bool>,
            maximize: Option<bool>,
            betas: Option<(f64, f64)>,
            eps: Option<f64>,
            amsgrad: Option<bool>,
            alpha: Option<f64>,
            centered: Option<bool>,
            lr_decay: Option<f64>,
            foreach: Option<bool>,
            fused: Option<bool>,
        ) -> Result<RRef<LocalOptimizer>, PyException> {
            // How PyTorch computes it, which makes no difference to what it computes.
            let _ = (foreach, fused);
            let settings = Settings {
                lr,
                momentum,
                dampening,
                weight_decay,
                nesterov,
                maximize,
                betas,
                eps,
                amsgrad,
                alpha,
                centered,
                lr_decay,
            };
            optimizer(optim_cls, local_params_rref, settings).await
        }
    };
}

makes_optimizers!(
    new_compiled_optimizer,
    "torch.distributed.optim.optimizer._new_script_local_optimizer"
);
// The same in later versions, which do not compile it.
makes_optimizers!(
    new_functional_optimizer,
    "torch.distributed.optim.optimizer._new_functional_local_optimizer"
);
makes_optimizers!(
    new_optimizer,
    "torch.distributed.optim.optimizer._new_local_optimizer"
);

#[farref::remote(
    python = "__torch__.torch.distributed.optim.optimizer._script_local_optimizer_step"
)]
async fn compiled_optimizer_step(
    local_optim_rref: RRef<LocalOptimizer>,
    autograd_ctx_id: i64,
) -> Result<(), PyException> {
    step(local_optim_rref, autograd_ctx_id).await
}

#[farref::remote(python = "torch.distributed.optim.optimizer._functional_local_optimizer_step")]
async fn functional_optimizer_step(
    local_optim_rref: RRef<LocalOptimizer>,
    autograd_ctx_id: i64,
) -> Result<(), PyException> {
    step(local_optim_rref, autograd_ctx_id).await
}

#[farref::remote(python = "torch.distributed.optim.optimizer._local_optimizer_step")]
async fn optimizer_step(
    local_optim_rref: RRef<LocalOptimizer>,
    autograd_ctx_id: i64,
) -> Result<(), PyException> {
    step(local_optim_rref, autograd_ctx_id).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizer_is_known_by_its_last_name_and_takes_its_own_settings_only() {
        let lr = Some(0.5);
        let settings = || Settings {
            lr,
            ..Settings::default()
        };
        for class in [
            "torch.optim.sgd.SGD",
            "torch.distributed.optim.functional_sgd._FunctionalSGD",
        ] {
            assert_eq!(settings().config(class), Ok(Sgd::new(0.5).into()));
        }
        let momentum = Some(0.9);
        let more = || Settings {
            momentum,
            ..settings()
        };
        assert_eq!(
            more().config("m.SGD"),
            Ok(Sgd::new(0.5).momentum(0.9).into())
        );
        let error = more().config("m.Adam").unwrap_err();
        assert!(error.message().contains("momentum"), "{error}");
        let error = settings().config("m.Rprop").unwrap_err();
        assert!(error.message().contains("m.Rprop"), "{error}");
        let uphill = Settings {
            maximize: Some(true),
            ..settings()
        };
        assert!(uphill.config("m.SGD").is_err());
    }
}
