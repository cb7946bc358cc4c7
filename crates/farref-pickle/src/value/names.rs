//! Names of functions and classes, as Python has them.

use serde::Serialize;

use super::captured::Captured;
use super::error::ValueError;
use crate::pickle::Writer;

/// The text that a value is.
pub fn text_of<T: Serialize + ?Sized>(value: &T) -> Result<String, ValueError> {
    match Captured::of(value)? {
        Captured::String(text) => Ok(text),
        _ => Err(ValueError::new("a name is a text")),
    }
}

/// The module and the name in it. Dots after the last module's belong to names inside of classes, which begin
/// with a capital letter by custom; who does otherwise writes `module:Outer.inner`.
pub fn split_name(full: &str) -> Result<(&str, &str), ValueError> {
    if let Some((module, name)) = full.split_once(':') {
        return Ok((module, name));
    }
    let is_class = |part: &str| part.trim_start_matches('_').starts_with(char::is_uppercase);
    let mut end = 0;
    for part in full.split('.') {
        if is_class(part) && end > 0 {
            return Ok((&full[..end - 1], &full[end..]));
        }
        end += part.len() + 1;
    }
    full.rsplit_once('.').ok_or_else(|| {
        ValueError::new(format_args!(
            "`{full}` does not say which module it is in: write `module.function`"
        ))
    })
}

/// Writes something that Python finds by its name.
pub fn write_name(writer: &mut Writer, full: &str) -> Result<(), ValueError> {
    let (module, name) = split_name(full)?;
    writer.global(module, name);
    Ok(())
}
