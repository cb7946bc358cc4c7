//! TensorPipe: how PyTorch's workers carry messages to each other.
//!
//! | part | job |
//! | --- | --- |
//! | [`greeting`] | what each connection begins with |
//! | [`brochure`] | what a side can do, and what both agree on |
//! | [`descriptor`] | what one message consists of |
//! | [`cma`] | where in its sender's memory a tensor is |
//!
//! Only the transport `uv` is offered here, and the channels `basic` and, to workers of the same host, `cma`. So a pipe is
//! made of TCP connections: one for descriptors and payloads, one for replies to descriptors that is never used, and those of
//! the channel. That is one for the bytes of tensors (`basic`), or one that says where in memory they are and one
//! that says when they have been read (`cma`).

mod brochure;
mod cma;
mod descriptor;
mod greeting;

pub(crate) use brochure::{Answer, Brochure, ChannelNumbers};
pub(crate) use cma::{LONGEST_MEMORY_DESCRIPTOR, MemoryDescriptor};
pub(crate) use descriptor::{Descriptor, PAYLOADS, TensorSlot};
pub(crate) use greeting::Greeting;
