//! Types that stand for values of another language: what they are there, nobody can tell here.

use std::any::TypeId;
use std::sync::OnceLock;

use farref_proto::Fingerprint;

/// What a reference to such a value says of its type: nothing, so it agrees with every other.
pub(crate) const FOREIGN_VALUE: Fingerprint = Fingerprint::foreign(0);

/// A type that stands for all values of another language. References to it agree with those to any type; whoever uses the
/// value finds out.
///
/// For crates that bring another language. Submitted at link time, as functions are.
#[derive(Debug)]
pub struct ForeignType {
    id: fn() -> TypeId,
    title: Option<&'static str>,
}

impl ForeignType {
    /// That type.
    pub const fn of<T: 'static>() -> Self {
        Self {
            id: TypeId::of::<T>,
            title: None,
        }
    }

    /// What its values are called in reports, if nothing better is known.
    pub const fn called(self, title: &'static str) -> Self {
        Self {
            title: Some(title),
            ..self
        }
    }
}

inventory::collect!(ForeignType);

/// Whether it is one of them.
pub(super) fn is_foreign(id: TypeId) -> bool {
    static TYPES: OnceLock<Vec<TypeId>> = OnceLock::new();
    let types = TYPES.get_or_init(|| {
        let types = inventory::iter::<ForeignType>();
        types.into_iter().map(|foreign| (foreign.id)()).collect()
    });
    types.contains(&id)
}

/// What values of other languages are called.
pub(crate) fn title() -> Option<&'static str> {
    static TITLE: OnceLock<Option<&'static str>> = OnceLock::new();
    *TITLE.get_or_init(|| {
        let mut types = inventory::iter::<ForeignType>();
        types.find_map(|foreign| foreign.title)
    })
}
