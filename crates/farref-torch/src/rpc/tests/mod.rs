//! Messages beyond those that were captured: other values, other forms, and what no worker sends.

mod jit;
mod message;
mod python;
