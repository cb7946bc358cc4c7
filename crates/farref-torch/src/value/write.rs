//! serde to pickle, on PyTorch's wire.

use farref_pickle::value::{Fields, Outward, ValueError, split_name, write_value};

use super::body::{Body, Placeholder, Replacement, TensorEntry};
use super::{python, tensor};
use crate::pickle::Writer;
use crate::rpc;

/// Writes a value.
pub(super) fn to_body(value: &dyn erased_serde::Serialize) -> Result<Body, ValueError> {
    let mut beside = Beside::default();
    let pickle = write_value(value, &mut beside)?;
    Ok(Body {
        pickle,
        placeholders: beside.placeholders,
        tensors: beside.tensors,
        ..Body::default()
    })
}

/// What a pickle under way has beside it.
#[derive(Default)]
struct Beside {
    placeholders: Vec<Placeholder>,
    tensors: Vec<TensorEntry>,
}

impl Beside {
    /// Leaves a placeholder. What stands there meanwhile is read back as what belongs there, if the value never
    /// leaves this process.
    fn leave(&mut self, writer: &mut Writer, replacement: Replacement) -> Result<(), ValueError> {
        let too_long = |_| ValueError::new("the value is longer than 4 GiB");
        let at = writer.written();
        let id = match replacement {
            Replacement::Reference(number) => i64::from(number),
            Replacement::Part(number) => -1 - i64::from(number),
        };
        writer.int(id).persistent();
        self.placeholders.push(Placeholder {
            at: u32::try_from(at).map_err(too_long)?,
            len: u32::try_from(writer.written() - at).map_err(too_long)?,
            replacement,
        });
        Ok(())
    }
}

impl Outward for Beside {
    fn reference(&mut self, writer: &mut Writer, number: u32) -> Result<(), ValueError> {
        self.leave(writer, Replacement::Reference(number))
    }

    fn memory(&mut self, writer: &mut Writer, _: bool, part: u32) -> Result<(), ValueError> {
        self.leave(writer, Replacement::Part(part))
    }

    fn catches(&self, name: &'static str) -> bool {
        name == tensor::TENSOR || name == tensor::RAW_TENSOR
    }

    fn caught(
        &mut self,
        writer: &mut Writer,
        name: &'static str,
        fields: Fields,
    ) -> Result<(), ValueError> {
        let entry = tensor::entry_of(name, &fields)?;
        rpc::write_tensor(writer, self.tensors.len());
        self.tensors.push(entry);
        Ok(())
    }

    fn is_call(&self, name: &'static str) -> bool {
        name == python::UDF_STRUCT
    }

    fn begin_call(&mut self, writer: &mut Writer, function: &str) -> Result<(), ValueError> {
        let (module, name) = split_name(function)?;
        rpc::Udf::begin(writer, module, name);
        Ok(())
    }

    fn end_call(&mut self, writer: &mut Writer) {
        rpc::Udf::end(writer);
    }
}
