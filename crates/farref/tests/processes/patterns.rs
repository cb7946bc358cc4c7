//! Values in which nothing can be missing or in another place without being noticed.
//!
//! They are filled and compared by the page, because tests are not optimised.

use std::sync::LazyLock;

/// How many words a page has.
const PAGE_WORDS: usize = 512;

/// Words of which each is different from its neighbours, so that no shift goes unnoticed.
static WORDS: LazyLock<[u64; PAGE_WORDS]> =
    LazyLock::new(|| std::array::from_fn(|index| mix(index as u64)));

fn mix(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A page of a value, whose first word says which one it is.
fn page(number: usize, seed: u64) -> [u64; PAGE_WORDS] {
    let mut page = *WORDS;
    page[0] = mix(number as u64 ^ seed.rotate_left(32));
    page
}

pub(crate) fn fill_bytes(bytes: &mut [u8], seed: u64) {
    for (number, chunk) in bytes.chunks_mut(8 * PAGE_WORDS).enumerate() {
        chunk.copy_from_slice(&bytemuck::cast_slice(&page(number, seed))[..chunk.len()]);
    }
}

pub(crate) fn check_bytes(bytes: &[u8], seed: u64) -> bool {
    let mut pages = bytes.chunks(8 * PAGE_WORDS).enumerate();
    pages.all(|(number, chunk)| {
        chunk == &bytemuck::cast_slice::<_, u8>(&page(number, seed))[..chunk.len()]
    })
}

pub(crate) fn bytes(size: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; size];
    fill_bytes(&mut bytes, seed);
    bytes
}

pub(crate) fn words(count: usize, seed: u64) -> Vec<u64> {
    let mut words = vec![0; count];
    fill_bytes(bytemuck::cast_slice_mut(&mut words), seed);
    words
}

pub(crate) fn check_words(words: &[u64], seed: u64) -> bool {
    check_bytes(bytemuck::cast_slice(words), seed)
}
