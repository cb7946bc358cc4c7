//! Arguments are sent: they are owned, and their types have names.

#![allow(unused_variables)]

use std::borrow::Cow;

#[farref::remote]
fn reference(text: &str) {}

#[farref::remote]
fn nested(parts: Vec<&'static [u8]>, table: &mut Vec<u8>) {}

#[farref::remote]
async fn lifetime(text: Cow<'_, str>) {}

#[farref::remote]
fn unnamed(call: impl Fn(u8) -> u8) {}

#[farref::remote]
fn conditional(#[cfg(unix)] mode: u32) {}

#[farref::remote]
#[rustfmt::skip]
fn many(
    a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8,
    i: u8, j: u8, k: u8, l: u8, m: u8, n: u8, o: u8, p: u8,
    q: u8,
) {
}

fn main() {}
