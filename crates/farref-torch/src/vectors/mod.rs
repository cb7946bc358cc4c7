//! What real PyTorch workers sent each other, and the tests that hold this crate to it: every message of
//! `vectors/*/messages.jsonl`, every greeting of `vectors/*/handshakes.json`.

mod json;
mod tests;

use serde_json::Value;

use crate::rpc::Kind;

/// A message as it was captured.
pub(crate) struct Captured {
    /// Which version of PyTorch, which scenario.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) id: i64,
    pub(crate) descriptor: Option<Vec<u8>>,
    /// How long payload 2 was before it was cut.
    pub(crate) cut: Option<u64>,
    pub(crate) payloads: [Vec<u8>; 4],
    pub(crate) tensor_bytes: Vec<Vec<u8>>,
    /// What payload 2 means, as the capturing scripts read it.
    pub(crate) body: Value,
    /// What payload 3 means, as the capturing scripts read it.
    pub(crate) tensors: Value,
}

const VERSIONS: [(&str, &str, &str); 2] = [
    (
        "2.15.0",
        include_str!("../../vectors/2.15.0/messages.jsonl"),
        include_str!("../../vectors/2.15.0/handshakes.json"),
    ),
    (
        "1.13.0",
        include_str!("../../vectors/1.13.0/messages.jsonl"),
        include_str!("../../vectors/1.13.0/handshakes.json"),
    ),
];

/// Payload 3 of a message without tensors.
const NO_TENSORS: &[u8] = b"\x80\x02ctorch.jit._pickle\nbuild_tensorlist\nq\x00(](etR.";

/// All captured messages.
pub(crate) fn messages() -> Vec<Captured> {
    let lines = VERSIONS
        .iter()
        .flat_map(|(version, messages, _)| messages.lines().map(move |line| (version, line)));
    lines
        .map(|(version, line)| message(version, line))
        .collect()
}

fn message(version: &str, line: &str) -> Captured {
    let line: Value = serde_json::from_str(line).expect("a line of JSON");
    let text = |key: &str| line[key].as_str().expect("a text").to_owned();
    let kind = text("type");
    let payloads = line["payloads"].as_array().expect("payloads");
    let payload = |place: usize| match payloads[place].as_str().expect("hexadecimal digits") {
        "no tensors" => NO_TENSORS.to_vec(),
        digits => bytes(digits),
    };
    Captured {
        name: format!("{version} {}", text("name")),
        kind: *(Kind::ALL.iter())
            .find(|known| known.name() == kind)
            .expect("a type of PyTorch's"),
        id: line["id"].as_i64().expect("an id"),
        descriptor: line["descriptor"].as_str().map(bytes),
        cut: line["cut"].as_u64(),
        payloads: [payload(0), payload(1), payload(2), payload(3)],
        tensor_bytes: match line["tensor_bytes"].as_array() {
            Some(all) => all.iter().filter_map(Value::as_str).map(bytes).collect(),
            None => Vec::new(),
        },
        body: line["body"].clone(),
        tensors: line["tensors"].clone(),
    }
}

/// All captured greetings, brochures and answers: what it is, and the bytes without their length.
pub(crate) fn handshakes() -> Vec<(String, String, Vec<u8>)> {
    let mut all = Vec::new();
    for (version, _, handshakes) in VERSIONS {
        let rows: Vec<Value> = serde_json::from_str(handshakes).expect("JSON");
        for row in rows {
            let text = |key: &str| row[key].as_str().expect("a text");
            let frame = bytes(text("frame"));
            let (length, object) = frame.split_first_chunk().expect("a length");
            assert_eq!(u64::from_le_bytes(*length), object.len() as u64);
            let name = format!("{version} {}", text("scenario"));
            all.push((name, text("what").to_owned(), object.to_vec()));
        }
    }
    all
}

pub(crate) fn bytes(digits: &str) -> Vec<u8> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    assert!(rest.is_empty(), "an odd number of digits");
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a digit") as u8;
    pairs
        .iter()
        .map(|[high, low]| digit(*high) << 4 | digit(*low))
        .collect()
}
