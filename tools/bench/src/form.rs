//! As what values are sent, which way, and how large.

use serde::Serialize;

/// As what bytes are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    Blob,
    /// A vector of `f32` in a `Buffer`, taken out of it at the other end.
    Buffer,
    /// candle's.
    Tensor,
    /// A plain `Vec<f32>`.
    Vec,
    /// And of other numbers, one way.
    VecU8,
    VecU32,
    VecF64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Direction {
    OneWay,
    Echo,
}

impl Form {
    pub(super) const ALL: [Self; 7] = [
        Self::Blob,
        Self::Buffer,
        Self::Tensor,
        Self::Vec,
        Self::VecU8,
        Self::VecU32,
        Self::VecF64,
    ];

    /// Those that are sent this way.
    pub(super) fn all(direction: Direction) -> impl Iterator<Item = Self> {
        let is_sent = move |form: &Self| match form {
            Self::Blob | Self::Buffer | Self::Tensor | Self::Vec => true,
            Self::VecU8 | Self::VecU32 | Self::VecF64 => direction == Direction::OneWay,
        };
        Self::ALL.into_iter().filter(is_sent)
    }

    /// Whether it is a plain vector of numbers.
    pub(super) fn is_vector(self) -> bool {
        match self {
            Self::Vec | Self::VecU8 | Self::VecU32 | Self::VecF64 => true,
            Self::Blob | Self::Buffer | Self::Tensor => false,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Blob => "Blob",
            Self::Buffer => "Buffer of f32",
            Self::Tensor => "tensor",
            Self::Vec => "Vec<f32>",
            Self::VecU8 => "Vec<u8>",
            Self::VecU32 => "Vec<u32>",
            Self::VecF64 => "Vec<f64>",
        }
    }
}

impl Direction {
    pub(super) const ALL: [Self; 2] = [Self::OneWay, Self::Echo];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OneWay => "one way",
            Self::Echo => "there and back",
        }
    }

    /// How often each byte goes over.
    pub(super) fn ways(self) -> usize {
        match self {
            Self::OneWay => 1,
            Self::Echo => 2,
        }
    }
}

/// `64 B`, `1 MiB`.
pub(super) fn quantity(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
