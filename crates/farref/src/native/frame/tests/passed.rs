//! BA-4 and BA-5: regions whose descriptors leave beside a frame.

use super::*;
use crate::codec::{SharedBytes, Width};

fn region(seed: u8) -> Part {
    let shared = SharedBytes::copy_of(&[seed; 5000]).expect("Linux");
    Part::from_shared(shared, Width::One)
}

/// A batch for a peer that takes regions.
fn batch(calls: &[(u64, Vec<Part>)], acknowledged: u64) -> Batch {
    let mut batch = Batch::default();
    fill(&mut batch, calls, acknowledged);
    batch
}

fn fill(batch: &mut Batch, calls: &[(u64, Vec<Part>)], acknowledged: u64) {
    for (seq, parts) in calls {
        batch.push(data(*seq, call(vec![1; 40].into(), parts.clone(), None)));
    }
    batch.permit_regions(true, acknowledged);
    batch.encode(Time(5), false);
}

/// Writes a batch, so many bytes at a time. Says with which of its bytes how many descriptors left.
fn write(batch: &mut Batch, most: usize) -> (Vec<(usize, usize)>, usize) {
    let mut left = Vec::new();
    let mut at = 0;
    while !batch.is_empty() {
        let due = batch.due_regions().len();
        if due > 0 {
            left.push((at, due));
        }
        let written = batch.write(|slices| {
            let there: usize = slices.iter().map(|slice| slice.len()).sum();
            Ok(there.min(most))
        });
        at += written.expect("it takes them");
    }
    (left, at)
}

#[test]
fn ba_4_descriptors_leave_once_with_the_first_byte_of_their_frame_however_it_is_written() {
    let calls = [
        (0, vec![]),
        (1, vec![region(1), Part::from(vec![1; 100]), region(2)]),
        (2, vec![Part::from(vec![2; 40_000])]),
        (3, vec![region(3)]),
        (4, vec![region(4), region(5), region(6)]),
        (5, vec![]),
    ];
    let lengths = calls.each_ref().map(|call| {
        let mut alone = batch(std::slice::from_ref(call), 0);
        write(&mut alone, usize::MAX).1
    });
    let begins = |call: usize| lengths[..call].iter().sum::<usize>();
    for most in [1, 7, 100, usize::MAX] {
        let (left, length) = write(&mut batch(&calls, 0), most);
        assert_eq!(left, [(begins(1), 2), (begins(3), 1), (begins(4), 3)]);
        assert_eq!(length, begins(6));
    }
}

/// BA-5: those that were acknowledged make room for as many others, and no more do.
#[test]
fn ba_5_descriptors_that_were_acknowledged_make_room_for_others() {
    let full = |first: u64| -> Vec<_> {
        let parts = vec![region(1); 16];
        (first..first + 6).map(|seq| (seq, parts.clone())).collect()
    };
    let passed = |left: Vec<(usize, usize)>| left.iter().map(|(_, count)| count).sum::<usize>();
    let mut batch = batch(&full(0), 0);
    assert_eq!(passed(write(&mut batch, usize::MAX).0), 64, "four frames");
    fill(&mut batch, &full(6), 0);
    assert_eq!(passed(write(&mut batch, usize::MAX).0), 0);
    // The first one of those that are not acknowledged is the third.
    fill(&mut batch, &full(12), 2);
    assert_eq!(passed(write(&mut batch, usize::MAX).0), 32);
    fill(&mut batch, &full(18), 18);
    assert_eq!(passed(write(&mut batch, usize::MAX).0), 64);
}
