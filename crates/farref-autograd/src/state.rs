//! Named tensors: what modules and optimizers save and load.
//!
//! A state is compared with what it is to be loaded into before anything is changed, by a description of
//! both: that is small, so that a group can be asked for it first.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::Device;

use crate::error::{Error, Mismatched, Result, StateMismatch};
use crate::parameter::Parameter;
use crate::tensor::Tensor;

/// Tensors by name.
pub type StateDict = BTreeMap<String, Tensor>;

/// What tensors there are: their shapes and types, for people, by name.
pub(crate) type Layout = BTreeMap<String, String>;

/// The shape and type of a tensor.
pub(crate) fn describe(tensor: &candle_core::Tensor) -> String {
    describe_as(tensor.dims(), tensor.dtype())
}

pub(crate) fn describe_as(shape: &[usize], dtype: candle_core::DType) -> String {
    format!("{shape:?} of {}", dtype.as_str())
}

/// Describes a state.
pub(crate) fn layout_of(state: &StateDict) -> Layout {
    let entries = state.iter();
    entries
        .map(|(name, tensor)| (name.clone(), describe(tensor)))
        .collect()
}

/// Whether a state fits. Says all that does not at once.
pub(crate) fn compare(expected: &Layout, found: &Layout) -> Result<(), StateMismatch> {
    let mut mismatch = StateMismatch::default();
    for (name, expected) in expected {
        match found.get(name) {
            None => mismatch.missing.push(name.clone()),
            Some(found) if found != expected => mismatch.mismatched.push(Mismatched {
                name: name.clone(),
                expected: expected.clone(),
                found: found.clone(),
            }),
            Some(_) => {}
        }
    }
    let unexpected = found.keys().filter(|name| !expected.contains_key(*name));
    mismatch.unexpected.extend(unexpected.cloned());
    if mismatch == StateMismatch::default() {
        Ok(())
    } else {
        Err(mismatch)
    }
}

/// The values of some parameters.
pub(crate) fn values(parameters: &[(String, Parameter)]) -> StateDict {
    let parameters = parameters.iter();
    parameters
        .map(|(name, parameter)| (name.clone(), parameter.value()))
        .collect()
}

/// Gives some parameters other values: all of them, or none if the state does not fit.
pub(crate) fn set_values(parameters: &[(String, Parameter)], state: &StateDict) -> Result<()> {
    compare(&layout_of(&values(parameters)), &layout_of(state))?;
    for (name, parameter) in parameters {
        if let Some(value) = state.get(name) {
            parameter.set(value)?;
        }
    }
    Ok(())
}

/// Writes named tensors to a file, in the format safetensors. The file is there when all of it is: one of
/// the same name is replaced then.
///
/// ```
/// use farref_autograd::{StateDict, Tensor, load_file, save_file};
///
/// # #[tokio::main]
/// # async fn main() -> farref_autograd::Result<()> {
/// let path = std::env::temp_dir().join(format!("farref-{}.safetensors", std::process::id()));
/// let state = StateDict::from([("weight".to_owned(), Tensor::from_vec(vec![1.0f32, 2.0], 2)?)]);
/// save_file(&path, &state).await?;
/// assert_eq!(load_file(&path).await?["weight"].to_vec1::<f32>()?, [1.0, 2.0]);
/// # std::fs::remove_file(path).ok();
/// # Ok(())
/// # }
/// ```
pub async fn save_file(path: impl AsRef<Path>, state: &StateDict) -> Result<()> {
    let path = path.as_ref().to_owned();
    let state = state.clone();
    in_background(move || save_now(&path, &state)).await
}

/// Reads what [`save_file`] or any other program has written in the format safetensors.
pub async fn load_file(path: impl AsRef<Path>) -> Result<StateDict> {
    let path = path.as_ref().to_owned();
    in_background(move || load_now(&path)).await
}

/// Files block.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::Checkpoint(format!("the task was ended: {error}"))),
    }
}

/// [`save_file`], here and now.
pub(crate) fn save_now(path: &Path, state: &StateDict) -> Result<()> {
    let explain = |error: &dyn std::fmt::Display| {
        Error::Checkpoint(format!("cannot write `{}`: {error}", path.display()))
    };
    let tensors: HashMap<&str, candle_core::Tensor> = state
        .iter()
        .map(|(name, tensor)| (name.as_str(), candle_core::Tensor::clone(tensor)))
        .collect();
    let partial = partial(path);
    let written = candle_core::safetensors::save(&tensors, &partial)
        .map_err(|error| explain(&error))
        .and_then(|()| {
            // On the disk before it takes the place of a good one.
            std::fs::File::open(&partial)
                .and_then(|file| file.sync_all())
                .and_then(|()| std::fs::rename(&partial, path))
                .map_err(|error| explain(&error))
        });
    if written.is_err() {
        // What went wrong before matters more than whether this works.
        drop(std::fs::remove_file(&partial));
    }
    written
}

/// A name next to `path` that nobody else writes to.
fn partial(path: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{count}.partial", std::process::id()));
    PathBuf::from(name)
}

/// [`load_file`], here and now.
pub(crate) fn load_now(path: &Path) -> Result<StateDict> {
    let tensors = candle_core::safetensors::load(path, &Device::Cpu)
        .map_err(|error| Error::Checkpoint(format!("cannot read `{}`: {error}", path.display())))?;
    let tensors = tensors.into_iter();
    Ok(tensors
        .map(|(name, tensor)| (name, Tensor::from(tensor)))
        .collect())
}
