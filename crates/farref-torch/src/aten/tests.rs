//! Operators against what PyTorch returned for the same arguments.
//!
//! Cases are kept in `vectors/aten`, where a script writes them. The arguments go the way of a call: a pickle of
//! PyTorch's C++, read by the codec into what the operator takes.

use std::process::Command;

use farref::__private::{Failure, Function, NoReceiver};
use farref::ValueCodec;
use farref::functions::Functions;
use farref_autograd::Tensor;
use farref_autograd::candle::{DType, Tensor as Plain};
use farref_testkit::thorough;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value as Json;

use super::arguments::{Input, Number, Operand, Sizes};
use super::{create, matrix, pointwise, reduce, shape, unary, views};
use crate::rpc::JitValue;
use crate::rpc::tensors::Dtype;
use crate::torch_python;
use crate::value::{Body, Form, PickleCodec, TensorData, TensorEntry, element_of};

/// A tensor of a case.
struct Elements {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
    requires_grad: bool,
}

impl Elements {
    fn read(json: &Json) -> Self {
        let name = json["dtype"].as_str().unwrap();
        let dtype = Dtype::ALL.iter().find(|dtype| dtype.python_name() == name);
        let hex = json["data"].as_str().unwrap().as_bytes();
        let digit = |digit: u8| char::from(digit).to_digit(16).unwrap() as u8;
        Self {
            dtype: *dtype.unwrap(),
            shape: json["shape"]
                .as_array()
                .unwrap()
                .iter()
                .map(|size| size.as_u64().unwrap() as usize)
                .collect(),
            bytes: hex
                .chunks(2)
                .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
                .collect(),
            requires_grad: json["grad"].as_bool().unwrap(),
        }
    }

    fn entry(&self) -> TensorEntry {
        TensorEntry {
            dtype: self.dtype,
            shape: self.shape.clone(),
            requires_grad: self.requires_grad,
            link: None,
            data: TensorData::Here(self.dtype.size() as u8, self.bytes.clone()),
        }
    }

    fn tensor(&self) -> Tensor {
        let buffer = farref::Buffer::from(self.bytes.clone());
        crate::value::tensor_of(self.dtype, self.shape.clone(), buffer.into(), false).unwrap()
    }
}

fn argument(json: &Json) -> JitValue {
    let Some((kind, value)) = json.as_object().and_then(|object| object.iter().next()) else {
        return JitValue::None;
    };
    let numbers = || {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item.as_i64().unwrap())
    };
    match &**kind {
        "tensor" => JitValue::Tensor(value.as_u64().unwrap() as usize),
        "bool" => JitValue::Bool(value.as_bool().unwrap()),
        "int" => JitValue::Int(value.as_i64().unwrap()),
        "float" => JitValue::Float(value.as_str().unwrap().parse().unwrap()),
        "text" => JitValue::Text(value.as_str().unwrap().to_owned()),
        "device" => JitValue::Device(value.as_str().unwrap().to_owned()),
        "ints" => JitValue::IntList(numbers().collect()),
        "tensors" => JitValue::TensorList(numbers().map(|place| place as usize).collect()),
        other => panic!("{other} is no argument"),
    }
}

/// Calls a function with what a peer sent.
fn run<F: Function<Access = NoReceiver, Output = Tensor>>(body: &Body) -> Result<Tensor, String> {
    let mut arguments = None;
    PickleCodec::default()
        .decode(&body.encode().unwrap(), &mut |from| {
            arguments = Some(F::Arguments::deserialize(from)?);
            Ok(())
        })
        .map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    match runtime.block_on(F::run((), arguments.unwrap())) {
        Ok(tensor) => Ok(tensor),
        Err(Failure::Returned(chain, _)) => Err(chain.join(": ")),
        Err(other) => panic!("{other:?}"),
    }
}

/// Calls an operator as a peer does that names an overload.
fn call(overload: &str, body: &Body) -> Result<Tensor, String> {
    let schema = format!("aten::{overload}(Tensor self) -> Tensor");
    let operator = overload.split('.').next().unwrap();
    // The search of `agent::incoming`.
    let functions = Functions::of_program().unwrap();
    let by_name = |name: &str| functions.by_foreign_name(&format!("torch.ops.aten.{name}"));
    let one = super::overload(&schema).and_then(|which| by_name(&format!("{operator}.{which}")));
    let info = one.or_else(|| by_name(operator));
    let info = info.unwrap_or_else(|| panic!("{overload} is not served"));
    let called = info.foreign_name.unwrap();
    macro_rules! served {
        ($($module:ident::$function:ident $name:literal,)*) => {
            match called {
                $(concat!("torch.ops.aten.", $name) => run::<$module::$function>(body),)*
                other => panic!("{other} is not known to the tests"),
            }
        };
    }
    served! {
        pointwise::add "add",
        pointwise::sub "sub",
        pointwise::subtract "subtract",
        pointwise::mul "mul",
        pointwise::multiply "multiply",
        pointwise::div "div",
        pointwise::divide "divide",
        pointwise::true_divide "true_divide",
        pointwise::pow "pow",
        unary::neg "neg",
        unary::negative "negative",
        unary::relu "relu",
        unary::square "square",
        unary::exp "exp",
        unary::log "log",
        unary::sqrt "sqrt",
        unary::tanh "tanh",
        unary::sigmoid "sigmoid",
        unary::sin "sin",
        unary::cos "cos",
        unary::softmax "softmax",
        unary::log_softmax "log_softmax",
        reduce::sum "sum",
        reduce::sum_dim "sum.dim_IntList",
        reduce::mean "mean",
        reduce::mean_dim "mean.dim",
        matrix::matmul "matmul",
        matrix::mm "mm",
        matrix::bmm "bmm",
        matrix::linear "linear",
        views::t "t",
        views::transpose "transpose",
        views::permute "permute",
        views::reshape "reshape",
        views::view "view",
        views::flatten "flatten",
        views::squeeze "squeeze",
        views::unsqueeze "unsqueeze",
        views::clone "clone",
        views::detach "detach",
        views::cat "cat",
        views::concat "concat",
        views::stack "stack",
        create::zeros "zeros",
        create::ones "ones",
        create::full "full",
        create::zeros_like "zeros_like",
        create::ones_like "ones_like",
        create::full_like "full_like",
    }
}

fn floats(tensor: &Plain) -> Vec<f64> {
    let tensor = tensor.to_dtype(DType::F64).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// How far apart numbers may be that were computed in another order.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-6,
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        _ => 0.0,
    }
}

/// Why two tensors are not the same, if they are not.
fn difference(found: &Plain, wanted: &Plain, allowed: f64) -> Option<String> {
    if (found.dtype(), found.dims()) != (wanted.dtype(), wanted.dims()) {
        return Some(format!(
            "{:?} {:?} instead of {:?} {:?}",
            found.dtype(),
            found.dims(),
            wanted.dtype(),
            wanted.dims()
        ));
    }
    if found.dtype() == DType::I64 {
        let all = |tensor: &Plain| tensor.flatten_all().unwrap().to_vec1::<i64>().unwrap();
        let (found, wanted) = (all(found), all(wanted));
        return (found != wanted).then(|| format!("{found:?} instead of {wanted:?}"));
    }
    let (found, wanted) = (floats(found), floats(wanted));
    let close = |(a, b): (&f64, &f64)| {
        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= allowed * b.abs().max(1.0)
    };
    let same = found.iter().zip(&wanted).all(close);
    (!same).then(|| format!("{found:?} instead of {wanted:?}"))
}

/// Why the gradients that arguments get are not PyTorch's, if they are not.
fn wrong_gradients(case: &Json, tensors: &[Elements], result: &Tensor) -> Option<String> {
    let seed = Elements::read(&case["seed"]).tensor();
    let product = (&**result * &*seed).unwrap().sum_all().unwrap();
    let store = product.backward().unwrap();
    let leaves: Vec<Plain> = result
        .sorted_nodes()
        .into_iter()
        .filter(|node| node.is_variable())
        .cloned()
        .collect();
    let asked = tensors.iter().filter(|tensor| tensor.requires_grad);
    let wanted = case["gradients"].as_array().unwrap();
    let asked: Vec<_> = asked
        .zip(wanted)
        .map(|(tensor, wanted)| (tensor.tensor(), Elements::read(wanted).tensor()))
        .collect();
    // Arguments are known by their elements. One that is there twice has two leaves; two that are alike count
    // together.
    let alike = |a: &Plain, b: &Plain| {
        (a.dtype(), a.dims()) == (b.dtype(), b.dims()) && floats(a) == floats(b)
    };
    // PyTorch rounds on the way to what the coarsest one of all can hold.
    let all = asked.iter().map(|(tensor, _)| tensor.dtype());
    let all = all.chain([result.dtype()]).map(tolerance);
    let allowed = 4.0 * all.fold(0.0, f64::max);
    for (tensor, _) in &asked {
        let mut sums = [(); 2].map(|()| tensor.zeros_like().unwrap());
        for leaf in leaves.iter().filter(|leaf| alike(leaf, tensor)) {
            if let Some(gradient) = store.get(leaf) {
                sums[0] = (&sums[0] + gradient).unwrap();
            }
        }
        for (_, wanted) in asked.iter().filter(|(other, _)| alike(other, tensor)) {
            sums[1] = (&sums[1] + &**wanted).unwrap();
        }
        if let Some(difference) = difference(&sums[0], &sums[1], allowed) {
            return Some(format!("gradients {difference}"));
        }
    }
    None
}

/// What is wrong with a case, if something is.
fn check(case: &Json) -> Option<String> {
    let tensors: Vec<Elements> = case["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(Elements::read)
        .collect();
    let arguments: Vec<JitValue> = case["arguments"]
        .as_array()
        .unwrap()
        .iter()
        .map(argument)
        .collect();
    let body = Body {
        form: Form::Head(arguments.len() as u32),
        pickle: JitValue::Tuple(arguments).encode(),
        tensors: tensors.iter().map(Elements::entry).collect(),
        ..Body::default()
    };
    let result = call(case["name"].as_str().unwrap(), &body);
    if let Some(error) = case["error"].as_str() {
        return match result {
            Ok(tensor) => Some(format!("{tensor:?} instead of the error {error}")),
            // What cannot be returned may be found out first.
            Err(text) if text.contains("torch.bool") => None,
            // What a caller may look for.
            Err(text) if error.contains("size") && !text.contains("size") => {
                Some(format!("{text}, not {error}"))
            }
            Err(_) => None,
        };
    }
    let wanted = Elements::read(&case["result"]);
    if wanted.dtype == Dtype::Bool {
        return match result {
            Err(text) if text.contains("torch.bool") => None,
            other => Some(format!("{other:?} instead of an error about torch.bool")),
        };
    }
    let result = match result {
        Ok(result) => result,
        Err(text) => return Some(format!("the error {text}")),
    };
    let (dtype, _) = element_of(&result).unwrap();
    if dtype != wanted.dtype {
        return Some(format!("{dtype} instead of {}", wanted.dtype));
    }
    if let Some(difference) = difference(&result, &wanted.tensor(), tolerance(result.dtype())) {
        return Some(difference);
    }
    // Nothing flows through no elements.
    if result.elem_count() > 0 && result.requires_grad() != wanted.requires_grad {
        return Some(format!("needs gradients: {}", result.requires_grad()));
    }
    match wanted.requires_grad && result.elem_count() > 0 {
        true => wrong_gradients(case, &tensors, &result),
        false => None,
    }
}

fn check_all(cases: &str) -> usize {
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in cases.lines() {
        let case: Json = serde_json::from_str(line).unwrap();
        count += 1;
        if let Some(why) = check(&case) {
            wrong.push(format!("{} {}: {why}", case["name"], case["arguments"]));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    count
}

/// AT-1, AT-2, AT-4.
#[test]
fn operators_return_what_pytorch_returned() {
    let count = check_all(include_str!("../../vectors/aten/cases.jsonl"));
    assert!(count > 700, "only {count} cases");
}

/// AT-1, AT-2, AT-4. `FARREF_TORCH_SEED` makes other cases.
#[test]
fn operators_return_what_pytorch_returns_for_random_arguments() {
    if torch_python::version().is_none() {
        return;
    }
    let seed = std::env::var("FARREF_TORCH_SEED").unwrap_or_else(|_| "1".to_owned());
    let cases = if thorough() { 400 } else { 100 };
    let script = include_str!("../../vectors/aten/cases.py");
    let output = Command::new(torch_python::interpreter())
        .args(["-W", "ignore", "-c", script, &seed, &cases.to_string()])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        check_all(std::str::from_utf8(&output.stdout).unwrap()),
        cases
    );
}

fn input(elements: Vec<i64>, dims: &[usize]) -> Input {
    Input {
        tensor: Tensor::from_vec(elements, dims).unwrap(),
        dtype: Dtype::Long,
    }
}

/// The element of a tensor at a place of a larger shape.
fn at(elements: &[i64], dims: &[usize], place: &[usize]) -> i64 {
    let place = &place[place.len() - dims.len()..];
    let sizes = dims.iter().zip(place);
    let index = sizes.fold(0, |index, (&size, &place)| {
        index * size + if size == 1 { 0 } else { place }
    });
    elements[index]
}

/// All places of a shape, the last dimension fastest.
fn places(dims: &[usize]) -> Vec<Vec<usize>> {
    dims.iter().fold(vec![vec![]], |places, &size| {
        let longer = |place: Vec<usize>| (0..size).map(move |next| [&place[..], &[next]].concat());
        places.into_iter().flat_map(longer).collect()
    })
}

/// A shape, and the same with some sizes left out in front or made one.
fn fitting() -> impl Strategy<Value = (Vec<usize>, Vec<usize>, Vec<usize>)> {
    let dims = prop::collection::vec(0..4_usize, 0..4);
    let masks = (prop::collection::vec(any::<bool>(), 4), 0..4_usize);
    (dims, masks.clone(), masks).prop_map(|(dims, one, other)| {
        let smaller = |(mask, cut): (Vec<bool>, usize)| {
            let sizes = dims.iter().zip(mask);
            let sizes = sizes.map(|(&size, keep)| if keep { size } else { 1 });
            sizes.skip(cut.min(dims.len())).collect::<Vec<_>>()
        };
        (dims.clone(), smaller(one), smaller(other))
    })
}

proptest! {
    #[test]
    fn operands_are_seen_as_the_larger_shape((_, a, b) in fitting(), seed in any::<i64>()) {
        let elements = |dims: &[usize], seed: i64| -> Vec<i64> {
            let count = dims.iter().product::<usize>() as i64;
            (0..count).map(|place| seed.wrapping_mul(place + 1)).collect()
        };
        let (one, other) = (elements(&a, seed), elements(&b, seed.rotate_left(7)));
        let result = pointwise::sub(
            input(one.clone(), &a).into(),
            input(other.clone(), &b).into(),
            Some(Number::Int(3)),
        );
        let result = result.unwrap();
        let rank = a.len().max(b.len());
        let size = |dims: &[usize], place: usize| {
            dims.len().checked_sub(rank - place).map_or(1, |place| dims[place])
        };
        let dims: Vec<usize> = (0..rank)
            .map(|place| match (size(&a, place), size(&b, place)) {
                (1, size) | (size, _) => size,
            })
            .collect();
        prop_assert_eq!(result.dims(), &dims[..]);
        let wanted: Vec<i64> = places(&dims)
            .iter()
            .map(|place| at(&one, &a, place).wrapping_sub(at(&other, &b, place).wrapping_mul(3)))
            .collect();
        prop_assert_eq!(result.flatten_all().unwrap().to_vec1::<i64>().unwrap(), wanted);
    }

    #[test]
    fn shapes_that_do_not_fit_are_told_by_their_sizes(
        a in prop::collection::vec(0..4_usize, 0..4),
        b in prop::collection::vec(0..4_usize, 0..4),
    ) {
        let fits = a.iter().rev().zip(b.iter().rev()).all(|(a, b)| a == b || *a == 1 || *b == 1);
        match shape::broadcast(&a, &b) {
            Ok(_) => prop_assert!(fits),
            Err(error) => {
                prop_assert!(!fits);
                prop_assert!(error.to_string().starts_with("The size of tensor a ("));
            }
        }
    }
}

/// AT-3.
#[test]
fn results_that_are_too_large_are_refused() {
    let size = |sizes: &[i64]| Sizes(sizes.to_vec());
    for sizes in [
        &[1 << 40][..],
        &[1 << 20, 1 << 20],
        &[i64::MAX, 2],
        &[0, i64::MAX, i64::MAX],
    ] {
        let error = create::zeros(size(sizes), None, None, None, None).unwrap_err();
        assert!(error.to_string().contains("memory"), "{error}");
    }
    let column = || input(vec![0; 1 << 15], &[1 << 15, 1]);
    let row = || input(vec![0; 1 << 15], &[1, 1 << 15]);
    for error in [
        pointwise::add(column().into(), row().into(), None).unwrap_err(),
        matrix::mm(column(), row()).unwrap_err(),
    ] {
        assert!(error.to_string().contains("memory"), "{error}");
    }
    let batches = |dims: &[usize]| Input {
        tensor: Plain::zeros(dims, DType::F32, &farref_autograd::candle::Device::Cpu)
            .unwrap()
            .into(),
        dtype: Dtype::Float,
    };
    let (a, b) = (
        batches(&[1 << 10, 1, 1, 1 << 10]),
        batches(&[1, 1 << 10, 1 << 10, 1]),
    );
    let error = matrix::matmul(a, b).unwrap_err();
    assert!(error.to_string().contains("memory"), "{error}");
}

/// AT-2. (PyTorch ends the process in some of these cases.)
#[test]
fn integers_wrap_around_and_do_not_panic() {
    let least = || input(vec![i64::MIN], &[1]);
    let number = |number| Operand::Number(Number::Int(number));
    for mode in ["floor", "trunc"] {
        let quotient = pointwise::div(least().into(), number(-1), Some(mode.to_owned())).unwrap();
        assert_eq!(quotient.to_vec1::<i64>().unwrap(), [i64::MIN]);
    }
    let negative = unary::neg(least()).unwrap();
    assert_eq!(negative.to_vec1::<i64>().unwrap(), [i64::MIN]);
    let power = pointwise::pow(number(3), input(vec![i64::MAX, i64::MIN], &[2]).into()).unwrap();
    let wanted = (0..62).fold((1_i64, 3_i64), |(power, square), _| {
        (power.wrapping_mul(square), square.wrapping_mul(square))
    });
    assert_eq!(
        power.to_vec1::<i64>().unwrap(),
        [wanted.0.wrapping_mul(wanted.1), 0]
    );
}

#[test]
fn operators_are_found_by_the_names_of_python_functions() {
    let functions = Functions::of_program().unwrap();
    let found = |module: &str, name: &str| {
        let names = super::operators(module, name);
        let info = names
            .iter()
            .find_map(|name| functions.by_foreign_name(name));
        info.and_then(|info| info.foreign_name)
    };
    let add = Some("torch.ops.aten.add");
    assert_eq!(found("torch", "add"), add);
    assert_eq!(found("torch._C", "_VariableFunctionsClass.add"), add);
    assert_eq!(found("torch._C", "TensorBase.add"), add);
    assert_eq!(found("torch._C", "_TensorBase.add"), add);
    assert_eq!(found("torch", "Tensor.add"), add);
    assert_eq!(
        found("torch.nn.functional", "relu"),
        Some("torch.ops.aten.relu")
    );
    assert_eq!(
        found("torch._C._nn", "linear"),
        Some("torch.ops.aten.linear")
    );
    // Where Python's arguments are not those of one overload.
    assert_eq!(found("torch", "sum"), Some("torch.sum"));
    assert_eq!(found("torch", "inverse"), None);
    assert_eq!(found("numpy", "add"), None);
    assert_eq!(found("torch._C", "add"), None);
}

#[test]
fn the_overload_is_in_the_schema() {
    assert_eq!(
        super::overload("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"),
        Some("Tensor")
    );
    assert_eq!(
        super::overload("aten::mm(Tensor self, Tensor mat2) -> Tensor"),
        None
    );
    assert_eq!(super::overload("aten::add(float x=.5) -> Tensor"), None);
    assert_eq!(super::overload(""), None);
}

#[test]
fn what_is_no_operand_is_refused() {
    let tensor = || TensorEntry {
        dtype: Dtype::ComplexFloat,
        shape: vec![1],
        requires_grad: false,
        link: None,
        data: TensorData::Here(8, vec![0; 8]),
    };
    let text = |text: &str| JitValue::Text(text.to_owned());
    let dict = JitValue::Dict {
        items: vec![(text("dtype"), text("Float"))],
        type_name: "Dict[str, str]".to_owned(),
    };
    for arguments in [
        vec![text("a"), text("b")],
        vec![JitValue::IntList(vec![1]), JitValue::IntList(vec![2])],
        vec![JitValue::Int(2), JitValue::Int(3)],
        vec![JitValue::None, JitValue::Int(3)],
        vec![JitValue::Tensor(0), JitValue::Int(3)],
        vec![JitValue::Tensor(7), JitValue::Int(3)],
        vec![dict, JitValue::Int(3)],
        vec![
            JitValue::Complex {
                real: 1.0,
                imaginary: 1.0,
            },
            JitValue::Int(3),
        ],
        vec![JitValue::Int(1); 4],
        vec![],
    ] {
        let body = Body {
            form: Form::Head(arguments.len() as u32),
            pickle: JitValue::Tuple(arguments.clone()).encode(),
            tensors: vec![tensor()],
            ..Body::default()
        };
        let result = run::<pointwise::add>(&body);
        assert!(result.is_err(), "{arguments:?} gave {result:?}");
    }
}
