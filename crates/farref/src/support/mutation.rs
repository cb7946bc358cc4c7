//! Faults that tests switch on to show that the simulator of the runtime, the scenarios under all schedules, or the tests of
//! the promises notice them.
//!
//! Each variant breaks one rule, in a line or two. Without the feature `mutations` [`mutated!`] is `false` at compile time, and
//! no rule can be broken. Which one is broken is said for a thread, if whoever looks for faults has but one, or for a whole process: by its
//! name in the variable `FARREF_MUTATION`. Each is noticed by one of the provers (`provers/`), and a test there says that none is left out.

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
    /// A call that comes twice, and is refused the second time, runs all the same (breaks D1).
    RunTwice,
    /// A call that nobody wants any more stays in the line of those that wait to be sent (breaks D4).
    KeepParked,
    /// More calls leave for a peer than it accepts (breaks D5).
    IgnoreWindow,
    /// Functions with large answers start whether or not there is room for these (breaks D5).
    NoAnswerBudget,
    /// A call that the program refuses runs all the same (breaks P1).
    IgnoreRefusal,
    /// The program is asked about a worker's calls to itself, too (breaks P2).
    AskOwnCalls,
    /// The program is told that its own worker is the caller (breaks P3).
    NameItself,
    /// A constructor whose value stays has its function's own time limit (breaks R6).
    TimeConstructors,
    /// Functions are called whatever signature the caller believes them to have (breaks R8).
    AnySignature,
    /// A reference is read as one to whatever type is asked for (breaks R8).
    AnyType,
    /// Of two batches of a stream that are asked for, the later one is read first (breaks T1).
    LaterBatchFirst,
    /// Whoever reads a stream asks for 64 batches ahead (breaks T2).
    AskFarAhead,
    /// A stream's reader never lets go of what makes the items (breaks T3).
    ReaderStays,
    /// A stream whose maker panics looks as if it had come to its end (breaks T4).
    PanicIsEnd,
    /// Everybody who asks for items of a stream gets some (breaks T5).
    AdmitAllReaders,
    /// What is asked for of a stream has the time limit of the call that it is read in (breaks T6).
    PullWithinCall,
    /// References to values of other workers cannot be published (breaks N1).
    PublishOwnOnly,
    /// What is published again has the version of what was there before (breaks N2).
    SameVersion,
    /// Names stay when the owner of their value is gone (breaks N3).
    KeepLostNames,
    /// Of several in the group that have a name, the one with the highest number counts (breaks N4).
    HighestCounts,
    /// Names that are left at the end stay (breaks N5).
    KeepNamesAtEnd,
    /// Errors of calls do not name the function (breaks F4).
    ErrorsUnnamed,
    /// Of a function's own error only the text arrives (breaks F5).
    ErrorsAreText,
    /// No connection is kept with those who are watched (breaks F9).
    OutOfSight,
    /// Whoever begins to watch is not told of those who are there (breaks W1).
    WatchFromNow,
    /// Of a life that came and went unread it is told that it joined, and never that it ended (breaks W2).
    TellUnmet,
    /// Of two events of a worker that wait to be read the second is lost (breaks W2).
    LoseSecondEvent,
    /// The stream of members ends without saying how its worker did (breaks W4).
    NoLastWord,
    /// A life that lasts is said to be gone to whoever begins to wait for its end (breaks W5).
    GoneWhileThere,
    /// The time that a shutdown may take runs while others still work (breaks S1a).
    HurryWorkers,
    /// References travel without the line that made them (breaks S2).
    ForgetOrigins,
    /// A `Peer` arrives as that of whoever sent it (breaks V1).
    PeerIsSender,
}

#[cfg(feature = "mutations")]
mod broken {
    use std::cell::Cell;
    use std::sync::OnceLock;

    use super::Mutation;

    thread_local! {
        static BROKEN: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Whether this thread breaks that rule, or this process does.
    pub(crate) fn is_broken(mutation: Mutation) -> bool {
        let by_thread = BROKEN.try_with(Cell::get).ok().flatten();
        by_thread.or_else(by_process) == Some(mutation)
    }

    /// What all threads of this process break.
    fn by_process() -> Option<Mutation> {
        static BROKEN: OnceLock<Option<Mutation>> = OnceLock::new();
        *BROKEN.get_or_init(|| {
            let name = std::env::var("FARREF_MUTATION").ok()?;
            let mut all = Mutation::ALL.iter();
            let named = all.find(|mutation| format!("{mutation:?}") == name);
            assert!(named.is_some(), "FARREF_MUTATION={name} is no fault");
            named.copied()
        })
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
