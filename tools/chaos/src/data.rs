//! What is made from numbers: whoever knows the number knows what is right.

/// A number that only the right two give.
pub(super) fn mixed(one: u64, other: u64) -> u64 {
    let mut mixed = one.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ other;
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    // Python takes it as it is, and so does JSON in a browser.
    (mixed ^ (mixed >> 32)) & ((1 << 52) - 1)
}

/// Bytes that are made from a number.
pub(super) fn bytes(number: u64, count: usize) -> Vec<u8> {
    let block: Vec<u8> = (0..32)
        .flat_map(|n| mixed(number, n).to_le_bytes())
        .collect();
    let mut bytes = block.repeat(count / block.len() + 1);
    bytes.truncate(count);
    bytes
}

/// A number that stands for bytes.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let chunks = bytes.chunks(8);
    chunks.fold(bytes.len() as u64, |sum, chunk| {
        let mut whole = [0; 8];
        whole[..chunk.len()].copy_from_slice(chunk);
        sum.rotate_left(5) ^ u64::from_le_bytes(whole)
    }) & ((1 << 52) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_differ_in_one_place_have_other_numbers() {
        let right = bytes(7, 1_003);
        assert_eq!(right.len(), 1_003);
        for place in [0, 500, 1_002] {
            let mut wrong = right.clone();
            wrong[place] ^= 1;
            assert_ne!(digest(&right), digest(&wrong), "{place}");
        }
        assert_ne!(digest(&right), digest(&right[..1_002]));
        assert_ne!(bytes(7, 64), bytes(8, 64));
    }
}
