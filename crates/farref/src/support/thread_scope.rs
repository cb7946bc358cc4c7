//! What surrounds the code that this thread runs: scopes that are entered and left again.

use std::cell::RefCell;
use std::thread::LocalKey;

/// The scopes that a thread is in, the innermost last.
pub(crate) type Scopes<T> = RefCell<Vec<T>>;

/// A scope that this thread is in until this is dropped, also when the code in between panics.
pub(crate) struct Entered<T: 'static> {
    scopes: &'static LocalKey<Scopes<T>>,
    /// How many there were before.
    outer: usize,
}

impl<T> Entered<T> {
    pub(crate) fn new(scopes: &'static LocalKey<Scopes<T>>, scope: T) -> Self {
        let outer = scopes.with_borrow_mut(|scopes| {
            scopes.push(scope);
            scopes.len() - 1
        });
        Self { scopes, outer }
    }

    /// Leaves the scope and says what has become of it.
    pub(crate) fn leave(self) -> Option<T> {
        let left = self.scopes.with_borrow_mut(|scopes| {
            let is_innermost = scopes.len() == self.outer + 1;
            is_innermost.then(|| scopes.pop()).flatten()
        });
        if left.is_some() {
            // Nothing is left for its destructor to do.
            std::mem::forget(self);
        }
        left
    }
}

impl<T> Drop for Entered<T> {
    fn drop(&mut self) {
        // One by one, and not while they are borrowed: what goes may have destructors that come back here.
        while let Some(scope) =
            self.scopes
                .with_borrow_mut(|scopes| match scopes.len() > self.outer {
                    true => scopes.pop(),
                    false => None,
                })
        {
            drop(scope);
        }
    }
}

/// Looks at the innermost scope, if there is one.
pub(crate) fn innermost<T, R>(
    scopes: &'static LocalKey<Scopes<T>>,
    look: impl FnOnce(&T) -> R,
) -> Option<R> {
    scopes.with_borrow(|scopes| scopes.last().map(look))
}

/// Changes the innermost scope, if there is one.
pub(crate) fn innermost_mut<T, R>(
    scopes: &'static LocalKey<Scopes<T>>,
    change: impl FnOnce(&mut T) -> R,
) -> Option<R> {
    scopes.with_borrow_mut(|scopes| scopes.last_mut().map(change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    thread_local! {
        static SCOPES: Scopes<u32> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn a_scope_is_left_with_what_it_has_become() {
        let outer = Entered::new(&SCOPES, 1);
        let inner = Entered::new(&SCOPES, 10);
        innermost_mut(&SCOPES, |scope| *scope += 1);
        assert_eq!(inner.leave(), Some(11));
        assert_eq!(innermost(&SCOPES, |scope| *scope), Some(1));
        assert_eq!(outer.leave(), Some(1));
        assert_eq!(innermost(&SCOPES, |scope| *scope), None);
    }

    #[test]
    fn a_panic_leaves_all_scopes_that_it_passes() {
        let outer = Entered::new(&SCOPES, 1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _middle = Entered::new(&SCOPES, 2);
            let _inner = Entered::new(&SCOPES, 3);
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(innermost(&SCOPES, |scope| *scope), Some(1));
        drop(outer);
        assert_eq!(innermost(&SCOPES, |scope| *scope), None);
    }

    #[test]
    fn who_leaves_too_early_takes_the_inner_ones_along() {
        let outer = Entered::new(&SCOPES, 1);
        let inner = Entered::new(&SCOPES, 2);
        assert_eq!(outer.leave(), None);
        assert_eq!(innermost(&SCOPES, |scope| *scope), None);
        drop(inner);
    }
}
