//! Encodings of values that are not farref's own.

use serde::de::DeserializeOwned;

use super::depth::Limited;
use super::error::CodecError;

/// A foreign encoding of values.
///
/// How deep values nest is limited for every codec. How many elements a sequence has is up to this one:
/// if an element may take no bytes at all, it has to limit their number, so that no few bytes keep a
/// thread busy.
///
/// ```
/// use farref::{CodecError, ValueCodec};
///
/// struct Json;
///
/// impl ValueCodec for Json {
///     fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError> {
///         serde_json::to_vec(value).map_err(CodecError::new)
///     }
///
///     fn decode(
///         &self,
///         body: &[u8],
///         read: &mut dyn FnMut(
///             &mut dyn erased_serde::Deserializer<'_>,
///         ) -> Result<(), erased_serde::Error>,
///     ) -> Result<(), CodecError> {
///         let mut json = serde_json::Deserializer::from_slice(body);
///         read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json)).map_err(CodecError::new)
///     }
/// }
///
/// let body = Json.encode(&("far", 7))?;
/// assert_eq!(body, br#"["far",7]"#);
///
/// // The runtime brings `read`, which knows the type.
/// let mut value: Option<(String, u32)> = None;
/// Json.decode(&body, &mut |json| {
///     value = Some(erased_serde::deserialize(json)?);
///     Ok(())
/// })?;
/// assert_eq!(value, Some(("far".to_owned(), 7)));
/// # Ok::<(), CodecError>(())
/// ```
pub trait ValueCodec: Send + Sync + 'static {
    /// Writes a value.
    fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError>;

    /// Reads a value: calls `read` once with a deserializer over `body`.
    fn decode(
        &self,
        body: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecError>;
}

/// Reads a value with somebody else's codec.
pub(super) fn read_by<T: DeserializeOwned>(
    codec: &dyn ValueCodec,
    body: &[u8],
) -> Result<T, CodecError> {
    let mut value = None;
    codec.decode(body, &mut |deserializer| {
        value = Some(T::deserialize(Limited::new(deserializer))?);
        Ok(())
    })?;
    value.ok_or_else(|| CodecError::new("the codec read nothing"))
}
