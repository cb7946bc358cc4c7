//! Writing the list of a message's tensors, as PyTorch does (RM-1).

use std::collections::HashMap;

use super::{COO, CSR, DENSE, ListedTensor, NO_HOOKS, PER_TENSOR, QUANTIZED, SPARSE, TensorView};
use crate::rpc::jit::index;
use crate::rpc::{JitWriter, RpcError};

/// Payload 3 of a message with these tensors. Fails if one of them is [`ListedTensor::Unsupported`].
pub(crate) fn write_list(tensors: &[ListedTensor]) -> Result<Vec<u8>, RpcError> {
    let mut writer = ListWriter {
        jit: JitWriter::new(),
        storages: HashMap::new(),
    };
    writer.jit.begin_list("build_tensorlist");
    for tensor in tensors {
        writer.tensor(tensor)?;
        writer.jit.raw().memoize();
    }
    writer.jit.end_list();
    Ok(writer.jit.finish())
}

struct ListWriter {
    jit: JitWriter,
    /// What each storage is remembered as.
    storages: HashMap<usize, u32>,
}

impl ListWriter {
    fn tensor(&mut self, tensor: &ListedTensor) -> Result<(), RpcError> {
        match tensor {
            ListedTensor::Dense(view) => {
                self.place(DENSE, view);
                self.jit.bool(view.requires_grad);
                self.no_hooks();
                self.flags(view);
                self.call();
            }
            ListedTensor::Quantized {
                view,
                scale,
                zero_point,
            } => {
                self.place(QUANTIZED, view);
                self.jit.raw().mark();
                self.jit.global(PER_TENSOR.0, PER_TENSOR.1);
                self.jit.raw().float(*scale).int(*zero_point).tuple();
                self.jit.bool(view.requires_grad);
                self.no_hooks();
                self.call();
            }
            ListedTensor::SparseCoo {
                sizes,
                requires_grad,
                indices,
                values,
            } => self.sparse(COO, sizes, *requires_grad, &[indices, values]),
            ListedTensor::SparseCsr {
                sizes,
                requires_grad,
                rows,
                columns,
                values,
            } => self.sparse(CSR, sizes, *requires_grad, &[rows, columns, values]),
            ListedTensor::Unsupported(what) => return Err(RpcError::Unsupported(what.clone())),
        }
        Ok(())
    }

    fn sparse(&mut self, layout: i64, sizes: &[usize], grad: bool, parts: &[&TensorView]) {
        self.jit.global(SPARSE.0, SPARSE.1);
        self.jit.raw().mark().int(layout);
        self.sizes(sizes);
        self.jit.bool(grad);
        for part in parts {
            self.place(DENSE, part);
            self.jit.bool(part.requires_grad);
            self.no_hooks();
            self.flags(part);
            self.call();
        }
        self.no_hooks();
        self.call();
    }

    /// The function that makes the tensor, and the first of its arguments.
    fn place(&mut self, (module, name): (&str, &str), view: &TensorView) {
        self.jit.global(module, name);
        self.jit.raw().mark();
        self.storage(view);
        self.jit.int(index(view.offset));
        self.sizes(&view.sizes);
        self.sizes(&view.strides);
    }

    fn storage(&mut self, view: &TensorView) {
        if let Some(number) = self.storages.get(&view.storage) {
            self.jit.raw().recall(*number);
            return;
        }
        self.jit.raw().mark();
        self.jit.text(b"storage");
        self.jit.global("torch", view.dtype.storage_class());
        self.jit.text(view.storage.to_string().as_bytes());
        self.jit.text(b"cpu").int(index(view.elements));
        let number = self.jit.raw().tuple().persistent().memoize();
        self.storages.insert(view.storage, number);
    }

    fn sizes(&mut self, sizes: &[usize]) {
        self.jit.raw().mark();
        for size in sizes {
            self.jit.int(index(*size));
        }
        self.jit.raw().tuple();
    }

    fn no_hooks(&mut self) {
        self.jit.global(NO_HOOKS.0, NO_HOOKS.1);
        self.jit.raw().tuple_of(0).reduce();
    }

    fn flags(&mut self, view: &TensorView) {
        if !view.conjugate && !view.negative {
            return;
        }
        const TYPE: &str = "Dict[str, bool]";
        self.jit.begin_tagged(TYPE);
        self.jit.raw().empty_dict().mark();
        for (name, is_set) in [("conj", view.conjugate), ("neg", view.negative)] {
            if is_set {
                self.jit.text(name.as_bytes()).bool(true);
            }
        }
        self.jit.raw().set_items();
        self.jit.end_tagged(TYPE);
    }

    /// Calls the function with its arguments.
    fn call(&mut self) {
        self.jit.raw().tuple().reduce();
    }
}
