//! PyTorch's `DistributedOptimizer` on parameters that are in Rust.
//!
//! It makes an optimizer on each worker that has some of the parameters, by functions of its own module, and steps it by
//! another one. Here these make a [`LocalOptimizer`], with the rules of the class that is asked for.

use farref::{RRef, Worker};
use farref_autograd::Parameter;
use farref_autograd::optim::{Adagrad, Adam, AdamW, LocalOptimizer, OptimizerConfig, RmsProp, Sgd};

use crate::value::PyValue;
use crate::{Keywords, PyException, Rest, torch_context};

/// Declares a function that makes an optimizer, under a name of PyTorch's.
macro_rules! makes_optimizers {
    ($function:ident, $python:literal) => {
        #[farref::remote(python = $python)]
        async fn $function(
            optim_cls: PyValue,
            local_params_rref: Vec<RRef<Parameter>>,
            args: Rest<PyValue>,
            kwargs: Keywords<PyValue>,
        ) -> Result<RRef<LocalOptimizer>, PyException> {
            new_optimizer(optim_cls, local_params_rref, args, kwargs).await
        }
    };
}

// Compiled in earlier versions; not in later ones; and those that PyTorch has no functional form of.
makes_optimizers!(
    new_compiled_optimizer,
    "torch.distributed.optim.optimizer._new_script_local_optimizer"
);
makes_optimizers!(
    new_functional_optimizer,
    "torch.distributed.optim.optimizer._new_functional_local_optimizer"
);
makes_optimizers!(
    new_plain_optimizer,
    "torch.distributed.optim.optimizer._new_local_optimizer"
);

/// The same for a function that steps one.
macro_rules! steps_optimizers {
    ($function:ident, $python:literal) => {
        #[farref::remote(python = $python)]
        async fn $function(
            local_optim_rref: RRef<LocalOptimizer>,
            autograd_ctx_id: i64,
        ) -> Result<(), PyException> {
            step(&local_optim_rref, autograd_ctx_id).await
        }
    };
}

steps_optimizers!(
    compiled_optimizer_step,
    "__torch__.torch.distributed.optim.optimizer._script_local_optimizer_step"
);
steps_optimizers!(
    functional_optimizer_step,
    "torch.distributed.optim.optimizer._functional_local_optimizer_step"
);
steps_optimizers!(
    plain_optimizer_step,
    "torch.distributed.optim.optimizer._local_optimizer_step"
);

fn wrong(text: impl ToString) -> PyException {
    PyException::new("RuntimeError", text.to_string())
}

fn me() -> Result<Worker, PyException> {
    Worker::current().ok_or_else(|| wrong("this is no call"))
}

async fn new_optimizer(
    class: PyValue,
    references: Vec<RRef<Parameter>>,
    given: Rest<PyValue>,
    named: Keywords<PyValue>,
) -> Result<RRef<LocalOptimizer>, PyException> {
    let config = config(&class, given.0, named.0)?;
    let mut parameters = Vec::with_capacity(references.len());
    for reference in references {
        if !reference.is_owner() {
            return Err(PyException::new(
                "ValueError",
                "a parameter of another worker",
            ));
        }
        parameters.push(reference.local().await?.clone());
    }
    let optimizer = LocalOptimizer::new(config, parameters).map_err(wrong)?;
    Ok(me()?.rref_to_object(optimizer)?)
}

/// The parameters change where they are. Steps of one optimizer come one after the other.
async fn step(optimizer: &RRef<LocalOptimizer>, context: i64) -> Result<(), PyException> {
    let found = torch_context(&me()?, context);
    let found = found.ok_or_else(|| wrong(format!("there is no autograd context {context}")))?;
    let mut optimizer = optimizer.local_mut().await?;
    optimizer.step(&found).map_err(wrong)
}

/// A setting of an optimizer.
#[derive(Clone, Copy)]
enum Setting {
    /// Taken over.
    Number(&'static str),
    Flag(&'static str),
    Betas,
    /// Only how it is computed.
    Ignored(&'static str),
    /// Has to be as it is if it is not said.
    Off(&'static str),
}

use Setting::{Betas, Flag, Ignored, Number, Off};

impl Setting {
    fn name(self) -> &'static str {
        match self {
            Number(name) | Flag(name) | Ignored(name) | Off(name) => name,
            Betas => "betas",
        }
    }
}

/// The settings by place, as PyTorch's classes take them, `_FunctionalSGD` and the like among them.
const SGD: &[Setting] = &[
    Number("lr"),
    Number("momentum"),
    Number("dampening"),
    Number("weight_decay"),
    Flag("nesterov"),
];
const ADAM: &[Setting] = &[
    Number("lr"),
    Betas,
    Number("eps"),
    Number("weight_decay"),
    Flag("amsgrad"),
];
const ADAGRAD: &[Setting] = &[
    Number("lr"),
    Number("lr_decay"),
    Number("weight_decay"),
    Number("initial_accumulator_value"),
    Number("eps"),
];
const RMSPROP: &[Setting] = &[
    Number("lr"),
    Number("alpha"),
    Number("eps"),
    Number("weight_decay"),
    Number("momentum"),
    Flag("centered"),
];
const OTHERS: &[Setting] = &[
    Ignored("foreach"),
    Ignored("fused"),
    Ignored("_allow_empty_param_list"),
    Ignored("coalesce_grad"),
    Off("maximize"),
    Off("capturable"),
    Off("differentiable"),
];

/// The optimizer that a class of Python's with these arguments is.
fn config(
    class: &PyValue,
    given: Vec<PyValue>,
    named: Vec<(String, PyValue)>,
) -> Result<OptimizerConfig, PyException> {
    let PyValue::Name(class) = class else {
        return Err(PyException::new("TypeError", "an optimizer is a class"));
    };
    // Others may have classes of these names, with other rules.
    let is_torchs = ["torch.optim.", "torch.distributed.optim."]
        .iter()
        .any(|module| class.starts_with(module));
    let name = class.rsplit('.').next().filter(|_| is_torchs);
    let name = name.unwrap_or_default();
    let functional = name.starts_with("_Functional");
    let known = match name.trim_start_matches("_Functional") {
        "SGD" => SGD,
        "Adam" | "AdamW" => ADAM,
        "Adagrad" => ADAGRAD,
        "RMSprop" => RMSPROP,
        _ => {
            return Err(PyException::new(
                "NotImplementedError",
                format!(
                    "this worker, a Rust program, has no optimizer {class}: of those in torch.optim it has SGD, Adam, AdamW, \
                     Adagrad and RMSprop"
                ),
            ));
        }
    };
    let mut settings = Settings::default();
    if given.len() > known.len() {
        let text = format!("{name} takes {} settings by place here", known.len());
        return Err(PyException::new("TypeError", text));
    }
    for (setting, value) in known.iter().zip(given) {
        settings.set(*setting, &value)?;
    }
    for (key, value) in named {
        let setting = known.iter().chain(OTHERS).find(|it| it.name() == key);
        let setting = setting.ok_or_else(|| {
            let text = format!("{name} got an unexpected keyword argument '{key}'");
            PyException::new("TypeError", text)
        })?;
        settings.set(*setting, &value)?;
    }
    // The classes differ in how far they step if nothing is said.
    let small_steps = std::ptr::eq(known, ADAM) || std::ptr::eq(known, SGD) && !functional;
    let default_rate = if small_steps { 1e-3 } else { 1e-2 };
    let rate = settings.lr.unwrap_or(default_rate);
    let betas = settings.betas.unwrap_or((0.9, 0.999));
    let number = |name: &str, default| settings.number(name).unwrap_or(default);
    let flag = |name: &str| settings.flag(name);
    Ok(match name.trim_start_matches("_Functional") {
        "SGD" => Sgd::new(rate)
            .momentum(number("momentum", 0.0))
            .dampening(number("dampening", 0.0))
            .weight_decay(number("weight_decay", 0.0))
            .nesterov(flag("nesterov"))
            .into(),
        "Adam" => Adam::new(rate)
            .betas(betas)
            .eps(number("eps", 1e-8))
            .weight_decay(number("weight_decay", 0.0))
            .amsgrad(flag("amsgrad"))
            .into(),
        "AdamW" => AdamW::new(rate)
            .betas(betas)
            .eps(number("eps", 1e-8))
            .weight_decay(number("weight_decay", 1e-2))
            .amsgrad(flag("amsgrad"))
            .into(),
        "Adagrad" => Adagrad::new(rate)
            .lr_decay(number("lr_decay", 0.0))
            .weight_decay(number("weight_decay", 0.0))
            .initial_accumulator_value(number("initial_accumulator_value", 0.0))
            .eps(number("eps", 1e-10))
            .into(),
        _ => RmsProp::new(rate)
            .alpha(number("alpha", 0.99))
            .eps(number("eps", 1e-8))
            .weight_decay(number("weight_decay", 0.0))
            .momentum(number("momentum", 0.0))
            .centered(flag("centered"))
            .into(),
    })
}

/// What was said.
#[derive(Default)]
struct Settings {
    lr: Option<f64>,
    betas: Option<(f64, f64)>,
    numbers: Vec<(&'static str, f64)>,
    flags: Vec<(&'static str, bool)>,
}

impl Settings {
    fn set(&mut self, setting: Setting, value: &PyValue) -> Result<(), PyException> {
        let bad = || {
            let text = format!(
                "the setting {} of an optimizer cannot be {value:?}",
                setting.name()
            );
            PyException::new("TypeError", text)
        };
        let number = |value: &PyValue| match value {
            PyValue::Int(value) => Ok(*value as f64),
            PyValue::Float(value) => Ok(*value),
            _ => Err(bad()),
        };
        match (setting, value) {
            (Number("lr"), value) => self.lr = Some(number(value)?),
            (Number(name), value) => self.numbers.push((name, number(value)?)),
            (Flag(name), PyValue::Bool(value)) => self.flags.push((name, *value)),
            (Betas, PyValue::Tuple(pair) | PyValue::List(pair)) => match &pair[..] {
                [one, two] => self.betas = Some((number(one)?, number(two)?)),
                _ => return Err(bad()),
            },
            (Ignored(_), _) | (Off(_), PyValue::Bool(false) | PyValue::None) => {}
            _ => return Err(bad()),
        }
        Ok(())
    }

    fn number(&self, name: &str) -> Option<f64> {
        let said = self.numbers.iter().rev().find(|(it, _)| *it == name);
        said.map(|(_, value)| *value)
    }

    fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|(it, value)| *it == name && *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> PyValue {
        PyValue::Name(name.to_owned())
    }

    #[test]
    fn settings_come_by_place_and_by_name_as_in_python() {
        let class = named("torch.distributed.optim.functional_sgd._FunctionalSGD");
        let given = vec![PyValue::Float(0.1), PyValue::Float(0.9)];
        let keywords = vec![
            ("nesterov".to_owned(), PyValue::Bool(true)),
            ("foreach".to_owned(), PyValue::None),
        ];
        let expected = Sgd::new(0.1).momentum(0.9).nesterov(true);
        let found = config(&class, given, keywords).unwrap();
        assert_eq!(found, expected.into());
        let betas = PyValue::Tuple(vec![PyValue::Float(0.5), PyValue::Int(0)]);
        let found = config(
            &named("torch.optim.adamw.AdamW"),
            vec![],
            vec![("betas".to_owned(), betas)],
        );
        assert_eq!(found.unwrap(), AdamW::default().betas((0.5, 0.0)).into());
        let class = named("torch.optim.rmsprop.RMSprop");
        assert_eq!(
            config(&class, vec![], vec![]).unwrap(),
            RmsProp::default().into()
        );
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        let sgd = named("torch.optim.sgd.SGD");
        let one = |name: &str, value| vec![(name.to_owned(), value)];
        for (class, keywords) in [
            (named("torch.optim.lbfgs.LBFGS"), vec![]),
            // Of somebody else, with rules of its own.
            (named("transformers.optimization.AdamW"), vec![]),
            (named("__main__.SGD"), vec![]),
            (named("SGD"), vec![]),
            (sgd.clone(), one("maximize", PyValue::Bool(true))),
            (sgd.clone(), one("momentums", PyValue::Float(0.1))),
            (sgd, one("lr", PyValue::Text("fast".to_owned()))),
            (PyValue::None, vec![]),
        ] {
            assert!(config(&class, vec![], keywords).is_err());
        }
    }
}
