//! PA-2: whatever was computed from a value of a parameter counts, wherever that was taken.

use std::sync::{Arc, Mutex};

use crate::common::{Group, elements, ones, parameter};
use anyhow::{Context as _, Result};
use farref_autograd::{Context, Parameter, Tensor};

/// What the hooks of a parameter have seen.
fn seen_by(parameter: &Parameter) -> Arc<Mutex<Vec<Vec<f64>>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let by_hook = Arc::clone(&seen);
    parameter.on_gradient(move |gradient| {
        by_hook.lock().unwrap().push(gradient.to_vec1()?);
        Ok(gradient)
    });
    seen
}

fn gradient(context: &Context, parameter: &Parameter) -> Result<Vec<f64>> {
    let gradient = context.gradient(parameter);
    elements(&*gradient.context("there is no gradient")?)
}

fn times(tensor: &Tensor, factor: f64) -> Result<Tensor> {
    Ok((&**tensor * factor)?.sum_all()?.into())
}

#[tokio::test]
async fn pa2_hooks_see_the_gradient_of_a_tensor_that_was_taken_outside() -> Result<()> {
    let group = Group::start(1).await?;
    let weight = parameter(&[1.0, 2.0], 2)?;
    let seen = seen_by(&weight);
    let loss = times(&weight.tensor(), 3.0)?;
    let context = Context::new(group.worker(0))?;
    context.backward(&[&loss]).await?;
    assert_eq!(gradient(&context, &weight)?, [3.0; 2]);
    assert_eq!(*seen.lock().unwrap(), [[3.0; 2]]);
    context.release().await?;
    group.finish(1).await
}

/// One loss, three values: before the context, in another one, in this one; and a step in between each.
#[tokio::test]
async fn pa2_all_values_of_a_parameter_in_one_pass_have_one_gradient() -> Result<()> {
    let group = Group::start(1).await?;
    let weight = parameter(&[1.0, 2.0], 2)?;
    let seen = seen_by(&weight);
    let outside = times(&weight.tensor(), 1.0)?;
    weight.set(&ones(2)?)?;
    let other = Context::new(group.worker(0))?;
    let elsewhere = other.enter(|| times(&weight.tensor(), 10.0))?;
    weight.set(&ones(2)?)?;
    let context = Context::new(group.worker(0))?;
    let inside = context.enter(|| times(&weight.tensor(), 100.0))?;
    weight.set(&ones(2)?)?;
    for pass in 1..=2 {
        context
            .backward(&[&outside, &elsewhere, &inside])
            .retain_graph()
            .await?;
        let expected = 111.0 * f64::from(pass);
        assert_eq!(gradient(&context, &weight)?, [expected; 2]);
        assert_eq!(*seen.lock().unwrap(), vec![[111.0; 2]; pass as usize]);
    }
    context.release().await?;
    other.release().await?;
    group.finish(1).await
}

/// A pass over what was taken outside, and then one over what was taken inside.
#[tokio::test]
async fn pa2_gradients_add_up_wherever_tensors_were_taken() -> Result<()> {
    let group = Group::start(1).await?;
    let weight = parameter(&[1.0, 2.0], 2)?;
    let outside = times(&weight.tensor(), 1.0)?;
    let context = Context::new(group.worker(0))?;
    context.backward(&[&outside]).await?;
    let inside = context.enter(|| times(&weight.tensor(), 10.0))?;
    context.backward(&[&inside]).await?;
    assert_eq!(gradient(&context, &weight)?, [11.0; 2]);
    context.release().await?;
    group.finish(1).await
}

/// A step for every value: what is forgotten is only what nobody can have use for.
#[tokio::test]
async fn pa2_a_value_is_known_through_many_steps() -> Result<()> {
    let group = Group::start(1).await?;
    let weight = parameter(&[1.0, 2.0], 2)?;
    let outside = times(&weight.tensor(), 1.0)?;
    for _ in 0..200 {
        weight.set(&ones(2)?)?;
    }
    let context = Context::new(group.worker(0))?;
    let inside = context.enter(|| times(&weight.tensor(), 10.0))?;
    context.backward(&[&outside, &inside]).await?;
    assert_eq!(gradient(&context, &weight)?, [11.0; 2]);
    context.release().await?;
    group.finish(1).await
}
