//! What the elements of a tensor are.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! dtypes {
    ($($dtype:ident = $size:literal, $name:literal;)*) => {
        /// A type of elements, by PyTorch's name.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        #[allow(non_camel_case_types, reason = "PyTorch's names")]
        #[non_exhaustive]
        pub enum Dtype {
            $(
                #[doc = concat!("`torch.", $name, "`.")]
                $dtype,
            )*
        }

        impl Dtype {
            /// All that can be read and written.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$dtype,)*];

            /// The name of the variant.
            pub(crate) const fn variant(self) -> &'static str {
                match self {
                    $(Self::$dtype => stringify!($dtype),)*
                }
            }

            /// The one of that name.
            pub(crate) fn from_name(variant: &str) -> Option<Self> {
                match variant {
                    $(stringify!($dtype) => Some(Self::$dtype),)*
                    _ => None,
                }
            }

            /// How many bytes an element takes.
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$dtype => $size,)*
                }
            }

            /// The class of its storages in the module `torch`.
            pub(crate) const fn storage_class(self) -> &'static str {
                match self {
                    $(Self::$dtype => concat!(stringify!($dtype), "Storage"),)*
                }
            }

            /// What Python calls it in the module `torch`.
            pub(crate) const fn python_name(self) -> &'static str {
                match self {
                    $(Self::$dtype => $name,)*
                }
            }
        }
    };
}

dtypes! {
    Byte = 1, "uint8";
    Char = 1, "int8";
    Short = 2, "int16";
    Int = 4, "int32";
    Long = 8, "int64";
    Half = 2, "float16";
    Float = 4, "float32";
    Double = 8, "float64";
    ComplexHalf = 4, "complex32";
    ComplexFloat = 8, "complex64";
    ComplexDouble = 16, "complex128";
    Bool = 1, "bool";
    QInt8 = 1, "qint8";
    QUInt8 = 1, "quint8";
    QInt32 = 4, "qint32";
    BFloat16 = 2, "bfloat16";
    Float8_e5m2 = 1, "float8_e5m2";
    Float8_e4m3fn = 1, "float8_e4m3fn";
    Float8_e5m2fnuz = 1, "float8_e5m2fnuz";
    Float8_e4m3fnuz = 1, "float8_e4m3fnuz";
    Float8_e8m0fnu = 1, "float8_e8m0fnu";
    UInt16 = 2, "uint16";
    UInt32 = 4, "uint32";
    UInt64 = 8, "uint64";
}

/// What Python calls it.
impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.python_name())
    }
}

impl Dtype {
    /// Whether its elements have gradients here.
    pub(crate) const fn is_float(self) -> bool {
        matches!(
            self,
            Self::Half | Self::Float | Self::Double | Self::BFloat16
        )
    }

    /// The type whose storages are of that class of the module `torch`.
    pub(crate) fn from_storage_class(class: &[u8]) -> Option<Self> {
        let all = Self::ALL.iter().copied();
        all.into_iter()
            .find(|dtype| dtype.storage_class().as_bytes() == class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_storage() {
        for dtype in Dtype::ALL {
            let class = dtype.storage_class();
            assert_eq!(Dtype::from_storage_class(class.as_bytes()), Some(*dtype));
        }
        assert_eq!(Dtype::from_storage_class(b"Float"), None);
        assert_eq!(Dtype::Float8_e4m3fn.storage_class(), "Float8_e4m3fnStorage");
    }
}
