//! TensorPipe: how PyTorch's workers carry messages to each other.
//!
//! | part | job |
//! | --- | --- |
//! | [`greeting`] | what each connection begins with |
//! | [`brochure`] | what a side can do, and what both agree on |
//! | [`descriptor`] | what one message consists of |
//!
//! A pipe is made of three TCP connections here, because only the transport `uv` and the channel `basic` are
//! offered: one for descriptors and payloads, one for replies to descriptors that is never used, one for the
//! bytes of tensors.

mod brochure;
mod descriptor;
mod greeting;

pub(crate) use brochure::{Answer, Brochure};
pub(crate) use descriptor::{Descriptor, PAYLOADS, TensorSlot};
pub(crate) use greeting::Greeting;
