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
pub struct ForeignType(fn() -> TypeId);

impl ForeignType {
    /// That type.
    pub const fn of<T: 'static>() -> Self {
        Self(TypeId::of::<T>)
    }
}

inventory::collect!(ForeignType);

/// Whether it is one of them.
pub(super) fn is_foreign(id: TypeId) -> bool {
    static TYPES: OnceLock<Vec<TypeId>> = OnceLock::new();
    let types = TYPES.get_or_init(|| {
        let types = inventory::iter::<ForeignType>();
        types.into_iter().map(|ForeignType(id)| id()).collect()
    });
    types.contains(&id)
}
