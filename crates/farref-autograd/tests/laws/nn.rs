//! The building blocks: their gradients against numerical ones, their values against candle-nn's.

use candle_core::{D, DType, Device, Tensor as Plain, Var};
use farref_autograd::nn::{self, Generator, Linear};
use farref_autograd::{Error, Module, Parameter, Result, Tensor, candle as candle_core};

fn random(shape: impl Into<candle_core::Shape>, seed: u64) -> Plain {
    let tensor = Generator::new(seed).uniform(shape, -1.5, 1.5, DType::F64);
    tensor.unwrap().into_candle()
}

/// Weights the elements differently, so that errors do not cancel out.
fn weigh(output: Tensor) -> Result<Plain> {
    let weights = random(output.shape(), 99);
    Ok(output.mul(&weights)?.sum_all()?)
}

/// Compares the gradients of a scalar function with central differences.
fn check(inputs: &[Plain], function: impl Fn(&[Plain]) -> Result<Plain>) {
    let variables: Vec<Var> = inputs
        .iter()
        .map(|input| Var::from_tensor(input).unwrap())
        .collect();
    let tracked: Vec<Plain> = variables.iter().map(|v| v.as_tensor().clone()).collect();
    let gradients = function(&tracked).unwrap().backward().unwrap();
    for (index, variable) in variables.iter().enumerate() {
        let gradient = gradients.get(variable).expect("the graph is not cut");
        let gradient = gradient.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let values = inputs[index].flatten_all().unwrap();
        let values = values.to_vec1::<f64>().unwrap();
        for element in 0..values.len() {
            let at = |shift: f64| {
                let mut values = values.clone();
                values[element] += shift;
                let mut inputs = inputs.to_vec();
                inputs[index] =
                    Plain::from_vec(values, inputs[index].shape(), &Device::Cpu).unwrap();
                function(&inputs).unwrap().to_scalar::<f64>().unwrap()
            };
            let step = 1e-5;
            let numerical = (at(step) - at(-step)) / (2.0 * step);
            let error = (numerical - gradient[element]).abs();
            assert!(
                error <= 1e-8 * numerical.abs().max(1.0),
                "input {index}, element {element}: {} instead of {numerical}",
                gradient[element]
            );
        }
    }
}

fn assert_close(one: &Plain, other: &Plain) {
    assert_eq!(one.dims(), other.dims());
    let difference = one.sub(other).unwrap().abs().unwrap();
    let greatest = difference.flatten_all().unwrap().max(0).unwrap();
    let greatest = greatest.to_dtype(DType::F64).unwrap();
    assert!(greatest.to_scalar::<f64>().unwrap() < 1e-5);
}

#[test]
fn softmax() {
    let x = random((2, 3, 4), 1);
    check(std::slice::from_ref(&x), |x| {
        weigh(nn::softmax_last_dim(&x[0])?)
    });
    let x = x.to_dtype(DType::F32).unwrap();
    let theirs = candle_nn::ops::softmax_last_dim(&x).unwrap();
    assert_close(&nn::softmax_last_dim(&x).unwrap(), &theirs);
}

#[test]
fn softmax_of_ties_and_of_great_numbers() {
    let ties = Plain::new(&[[2.0f64, 2.0, 1.0]], &Device::Cpu).unwrap();
    check(&[ties], |x| weigh(nn::softmax_last_dim(&x[0])?));
    let great = Plain::new(&[[1000.0f64, 0.0]], &Device::Cpu).unwrap();
    let shares = nn::softmax_last_dim(&great).unwrap();
    assert_eq!(shares.to_vec2::<f64>().unwrap(), [[1.0, 0.0]]);
    let logarithms = nn::log_softmax_last_dim(&great).unwrap();
    assert_eq!(logarithms.to_vec2::<f64>().unwrap(), [[0.0, -1000.0]]);
}

#[test]
fn log_softmax() {
    let x = random((3, 5), 2);
    check(std::slice::from_ref(&x), |x| {
        weigh(nn::log_softmax_last_dim(&x[0])?)
    });
    let theirs = candle_nn::ops::log_softmax(&x, D::Minus1).unwrap();
    assert_close(&nn::log_softmax_last_dim(&x).unwrap(), &theirs);
}

#[test]
fn layer_norm() {
    let (x, weight, bias) = (random((2, 3, 4), 3), random(4, 4), random(4, 5));
    let inputs = [x, weight, bias];
    check(&inputs, |x| {
        weigh(nn::layer_norm(&x[0], &x[1], Some(&x[2]), 1e-5)?)
    });
    check(&inputs[..2], |x| {
        weigh(nn::layer_norm(&x[0], &x[1], None, 1e-5)?)
    });
    let [x, weight, bias] = inputs.map(|input| input.to_dtype(DType::F32).unwrap());
    let theirs = candle_nn::ops::layer_norm(&x, &weight, &bias, 1e-5).unwrap();
    assert_close(
        &nn::layer_norm(&x, &weight, Some(&bias), 1e-5).unwrap(),
        &theirs,
    );
}

#[test]
fn rms_norm() {
    let inputs = [random((2, 3, 4), 6), random(4, 7)];
    check(&inputs, |x| weigh(nn::rms_norm(&x[0], &x[1], 1e-6)?));
    let [x, weight] = inputs.map(|input| input.to_dtype(DType::F32).unwrap());
    let theirs = candle_nn::ops::rms_norm(&x, &weight, 1e-6).unwrap();
    assert_close(&nn::rms_norm(&x, &weight, 1e-6).unwrap(), &theirs);
}

#[test]
fn cross_entropy() {
    let logits = random((4, 3), 8);
    let targets = Plain::new(&[0u32, 2, 1, 2], &Device::Cpu).unwrap();
    check(std::slice::from_ref(&logits), |x| {
        Ok(nn::cross_entropy(&x[0], &targets)?.into_candle())
    });
    let theirs = candle_nn::loss::cross_entropy(&logits, &targets).unwrap();
    assert_close(&nn::cross_entropy(&logits, &targets).unwrap(), &theirs);

    let wrong = Plain::new(&[0u32, 3, 1, 2], &Device::Cpu).unwrap();
    let error = nn::cross_entropy(&logits, &wrong).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let none = Plain::new(&[0u32, u32::MAX, 1, 2], &Device::Cpu).unwrap();
    let error = nn::cross_entropy(&logits, &none).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let few = Plain::new(&[0u32], &Device::Cpu).unwrap();
    let error = nn::cross_entropy(&logits, &few).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
}

#[test]
fn mse_loss() {
    check(&[random((3, 2), 9), random((3, 2), 10)], |x| {
        Ok(nn::mse_loss(&x[0], &x[1])?.into_candle())
    });
}

#[test]
fn rope() {
    let angles = random((5, 3), 11);
    let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
    let x = random((2, 2, 4, 6), 12);
    check(&[x.clone(), cos.clone(), sin.clone()], |x| {
        weigh(nn::rope(&x[0], &x[1], &x[2])?)
    });
    let theirs = candle_nn::rotary_emb::rope(
        &x,
        &cos.narrow(0, 0, 4).unwrap(),
        &sin.narrow(0, 0, 4).unwrap(),
    );
    assert_close(&nn::rope(&x, &cos, &sin).unwrap(), &theirs.unwrap());

    for wrong in [random((4, 5), 1), random(6, 1), random((6, 6), 1)] {
        let error = nn::rope(&wrong, &cos, &sin).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    }
}

#[test]
fn linear() {
    let inputs = [random((2, 3, 4), 13), random((5, 4), 14), random(5, 15)];
    let layer = Linear::from_parameters(
        Parameter::new(&inputs[1]).unwrap(),
        Some(Parameter::new(&inputs[2]).unwrap()),
    );
    let output = layer.unwrap().forward(&inputs[0].clone().into()).unwrap();
    let by_hand = |x: &[Plain]| -> Result<Tensor> {
        let product = x[0].broadcast_matmul(&x[1].t()?)?;
        Ok(product.broadcast_add(&x[2])?.into())
    };
    assert_close(&output, &by_hand(&inputs).unwrap());

    // With respect to the input; parameters are compared over the group in `modules.rs`.
    let layer = Linear::new(4, 5, DType::F64, &mut Generator::new(3)).unwrap();
    check(&inputs[..1], |x| {
        weigh(layer.forward(&x[0].clone().into())?)
    });
    let bound = 0.5;
    for (_, parameter) in layer.parameters() {
        let values = parameter.value().flatten_all().unwrap();
        let values = values.to_vec1::<f64>().unwrap();
        assert!(values.iter().all(|value| value.abs() <= bound));
        assert!(values.iter().any(|value| value.abs() > bound / 4.0));
    }
    let error = layer.forward(&random((2, 3), 1).into()).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    let weight = Parameter::new(&random((2, 3), 1)).unwrap();
    let bias = Parameter::new(&random(3, 1)).unwrap();
    assert!(Linear::from_parameters(weight, Some(bias)).is_err());
}

#[test]
fn half_precision_comes_back_as_it_came() {
    let x = random((2, 8), 16).to_dtype(DType::BF16).unwrap();
    let shares = nn::softmax_last_dim(&x).unwrap();
    assert_eq!(shares.dtype(), DType::BF16);
    let weight = Plain::ones(8, DType::BF16, &Device::Cpu).unwrap();
    assert_eq!(
        nn::rms_norm(&x, &weight, 1e-6).unwrap().dtype(),
        DType::BF16
    );
}
