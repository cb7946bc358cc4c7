//! Faults that tests switch on to show that the simulator of the runtime and the scenarios under all schedules notice them.
//!
//! Each variant breaks one rule at one line. Without the feature `mutations` [`mutated!`] is `false` at compile time, and
//! no rule can be broken. Which one is broken is said for a thread: whoever looks for faults has but one. Each is noticed by one of the
//! two provers (`provers/`), and a test there says that none is left out.

/// Makes the enum and the list of all its variants out of one text, so that none is forgotten.
#[cfg(feature = "mutations")]
macro_rules! mutations {
    ($($(#[$what:meta])* $name:ident,)*) => {
        /// A rule of the runtime to break.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Mutation {
            $($(#[$what])* $name,)*
        }

        impl Mutation {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

#[cfg(feature = "mutations")]
mutations! {
    /// The writer lock is released whether or not there is a mark (breaks SD-1).
    ReleaseMarked,
    /// The writer lock is handed over, and nobody is told (breaks SD-1).
    HandOverInSilence,
    /// What a stream has taken a part of counts as written (breaks D2).
    PartIsAll,
    /// Of messages that came together the last is not delivered (breaks RE-2).
    LoseLastMessage,
    /// Whoever lost a connection makes no other (breaks DI-1).
    NoRedial,
    /// The timer is not told of an earlier moment (breaks TI-1).
    TimerNotTold,
    /// The clock forgets the moment that it knows after it has looked, not before (breaks DL-1).
    ForgetAfterLooking,
    /// Whoever cancels is looked for before the waker is in place (breaks D4).
    LookBeforeWatching,
    /// Whoever waits for a reply is not told that there will be none (breaks RP-1).
    EndInSilence,
    /// A call is given to a task that is gone (breaks TP-2).
    GiveToTheGone,
    /// A job wakes a thread that another job has claimed (breaks BP-2).
    NoClaim,
    /// Calls to a worker that is lost stay open (breaks F2).
    KeepLostCalls,
    /// A reference that the program drops is not released (breaks R2).
    KeepDropped,
    /// Tasks of an agent go on when it has stopped (breaks S4).
    KeepTasks,
}

#[cfg(feature = "mutations")]
mod broken {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        static BROKEN: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Whether this thread breaks that rule.
    pub(crate) fn is_broken(mutation: Mutation) -> bool {
        BROKEN.try_with(Cell::get).ok().flatten() == Some(mutation)
    }

    /// This thread breaks a rule, until this is dropped.
    #[derive(Debug)]
    pub struct Mutated(Option<Mutation>);

    impl Drop for Mutated {
        fn drop(&mut self) {
            BROKEN.set(self.0);
        }
    }

    /// Breaks a rule on this thread, until what is returned is dropped.
    pub fn mutate(mutation: Option<Mutation>) -> Mutated {
        Mutated(BROKEN.replace(mutation))
    }
}

#[cfg(feature = "mutations")]
pub(crate) use broken::is_broken;
#[cfg(feature = "mutations")]
pub use broken::{Mutated, mutate};

/// Whether the given rule is broken; `false` at compile time without the feature.
macro_rules! mutated {
    ($variant:ident) => {{
        #[cfg(feature = "mutations")]
        let broken =
            $crate::support::mutation::is_broken($crate::support::mutation::Mutation::$variant);
        #[cfg(not(feature = "mutations"))]
        let broken = false;
        broken
    }};
}
pub(crate) use mutated;
