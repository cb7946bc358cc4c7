//! Some functions cannot be called from afar.

#![allow(unused_variables)]

#[farref::remote]
const fn constant() {}

#[farref::remote]
unsafe fn dangerous() {}

#[farref::remote]
extern "C" fn foreign() {}

#[farref::remote]
fn generic<T>(value: T) {}

#[farref::remote]
fn bounded()
where
    u8: Copy,
{
}

struct Table;

#[farref::remote]
impl Table {
    pub const fn len(&self) -> usize {
        0
    }
}

fn main() {}
