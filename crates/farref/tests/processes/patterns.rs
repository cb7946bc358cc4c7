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

/// The pages of the value with this seed, in order.
///
/// Every word depends on the seed. The first word of a page also depends on its number.
fn pages(seed: u64) -> impl Iterator<Item = [u64; PAGE_WORDS]> {
    let key = mix(seed.rotate_left(32));
    let mut page = WORDS.map(|word| word ^ key);
    (0..).map(move |number| {
        page[0] = mix(number) ^ key;
        page
    })
}

pub(crate) fn fill_bytes(bytes: &mut [u8], seed: u64) {
    for (chunk, page) in bytes.chunks_mut(8 * PAGE_WORDS).zip(pages(seed)) {
        chunk.copy_from_slice(&bytemuck::cast_slice(&page)[..chunk.len()]);
    }
}

pub(crate) fn check_bytes(bytes: &[u8], seed: u64) -> bool {
    let mut chunks = bytes.chunks(8 * PAGE_WORDS).zip(pages(seed));
    chunks.all(|(chunk, page)| chunk == &bytemuck::cast_slice::<_, u8>(&page)[..chunk.len()])
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
