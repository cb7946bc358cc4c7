//! FR-1 and FR-4 for parts whose elements are wider than a byte.

use super::*;
use crate::codec::{PartBytes, Width};

#[test]
fn half_an_element_is_refused_before_anything_of_it_has_come() {
    // FR-1
    for (length, width) in [
        (8193, Width::Two),
        (8194, Width::Four),
        (8196, Width::Eight),
    ] {
        let parts = vec![Part::from(vec![7; 8192])];
        let bytes = encode([data(0, call(Bytes::new(), parts, None))], Time(5));
        let bytes = announce(bytes, 8192, part_entry(length, width, Place::Inline));
        let (received, error) = decode(&bytes[..bytes.len() - 8192], &[usize::MAX]);
        assert!(received.is_empty());
        let length = length as u64;
        assert_eq!(error, Some(FrameError::UnevenPart { length, width }));
    }
}

#[test]
fn wide_elements_arrive_in_a_vector_of_their_own_type() {
    // FR-4: the vector that was read into is the one that comes out.
    let values: Vec<f64> = (0..300_000).map(f64::from).collect();
    let parts = vec![part(values.clone()), part(vec![0.5_f32; 5000])];
    let bytes = encode([data(0, call(Bytes::new(), parts, None))], Time(5));
    let (mut received, _) = decode(&bytes, &[30_001]);
    let Some(DecodedFrame::Session(Frame::Data { payload, .. })) = received.pop() else {
        panic!("not data");
    };
    let Message::Call(call) = *payload.0 else {
        panic!("not a call");
    };
    let [doubles, floats] = call.arguments.parts.try_into().expect("two parts");
    let PartBytes::Here(there) = doubles.place() else {
        panic!("received by value");
    };
    let at = there.as_ptr();
    let doubles = doubles.into_vec::<f64>().expect("they are");
    assert_eq!(doubles.as_ptr().cast(), at, "copied");
    assert_eq!(doubles.capacity(), values.len());
    assert_eq!(doubles, values);
    assert_eq!(floats.into_vec::<f32>().expect("they are"), [0.5; 5000]);
}
