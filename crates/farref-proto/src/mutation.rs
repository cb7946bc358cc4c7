//! Faults that tests switch on to show that the simulator and the model checker notice them.
//!
//! Each variant breaks one rule at one line. Without the `mutations` feature [`Mutant::is`] is
//! `false` at compile time and the rules cannot be broken.

/// A rule to break.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg(feature = "mutations")]
#[non_exhaustive]
pub enum Mutation {
    /// A user that hands a reference on does not stay alive for its child (breaks RT-3).
    ForgetParentHold,
    /// An owner that hands a reference out does not register the fork (breaks RT-2).
    NoEarlyRegistration,
    /// The first release frees the value, whoever else holds it (breaks RT-1).
    FreeOnFirstRelease,
    /// The forks of a dead holder stay (breaks RT-6).
    IgnoreDeadHolder,
    /// A fork is acknowledged but not registered (breaks RT-4).
    ConfirmWithoutRegistering,
    /// A dead holder's forks are released as soon as its death is known here (breaks RT-6).
    ReleaseBeforeSettled,
    /// A parent forgets a fork on its way to a node that died (breaks RT-7).
    NoAdoption,
    /// A confirmation of a fork that is no longer held goes unanswered (breaks RT-8).
    NoEcho,
    /// A user releases before the owner has confirmed it (breaks RT-5).
    ReleaseUnconfirmed,
    /// A child tells its parent to let go before the owner has registered it (breaks RT-3).
    AcceptOnReceipt,
    /// A carried fork is not taken back when its message cannot be sent (breaks RT-9).
    NoUndo,
    /// A fork that arrives before its value's creation is declined (breaks RT-10).
    NoPendingOwner,
    /// Losing the owner leaves the reference pending (breaks RT-11).
    IgnoreDeadOwner,
    /// A context is released while calls made in it are running (breaks CT-1).
    ReleaseBusyContext,
    /// A released context is forgotten altogether (breaks CT-3).
    ForgetClosedContext,
    /// A worker cut off from a context's origin by a death does not ask it (breaks CT-4).
    NoAttach,
    /// A member says that it refuses a dead node's frames, and goes on taking them in (breaks ME-2).
    KeepListening,
    /// A newcomer is let in before all members know it (breaks ME-4).
    WelcomeEarly,
    /// Shutdown believes a single look (breaks QU-1).
    ShutdownAfterOneRound,
    /// A value that somebody waits for is freed when nobody else needs it (breaks RT-1).
    FreeIgnoresWaiting,
    /// A message joins an earlier one of its kind, past others in between (breaks ME-3 and RT-7).
    MergePastOthers,
    /// Who was suspected once is suspected for good, however often it is heard (breaks ME-6).
    KeepSuspicion,
    /// A member is declared dead without being asked by one that can reach it (breaks ME-7).
    CondemnUnasked,
    /// A newcomer believes that all know what it was welcomed with (breaks ME-5).
    WelcomedKnowsAll,
    /// Nothing is noted of lives that were over before this node heard of them (breaks RT-11).
    ForgetNeverMet,
    /// What is true of a life is not taken to be true of those before it (breaks RT-6, RT-11, CT-3).
    WatermarkExact,
    /// What somebody knew before counts as its word on what came after (breaks ME-5).
    OldWordSettles,
    /// Those who are joining are not waited for when a departure settles (breaks ME-4).
    JoiningNotAwaited,
    /// A member says that it knows what it is asked about, whatever it knows (breaks ME-5).
    KnownWhatever,
    /// A member gives its word before the owners of what the departed handed it have answered (breaks ME-3).
    KnownUnregistered,
    /// What has departed since a member gave its word settles with the rest (breaks ME-5).
    SettleWhatCameSince,
    /// A node acts on a departure towards others without telling them of it (breaks ME-3 and RT-7).
    ActUntold,
    /// A call brings a context back whose origin is gone (breaks CT-3).
    ReopenDeadContext,
    /// A call whose caller is gone goes on running in its context for ever (breaks CT-1).
    AbandonedCallRunsOn,
    /// Shutdown does not mind that members came and went between its two looks (breaks QU-1).
    ShutdownIgnoresView,
    /// Whoever is accused stays, and the accuser goes, whatever their numbers (breaks ME-7).
    AccusedAlwaysStays,
    /// A leader that has begun to ask goes on when somebody departs, without that one (breaks ME-5).
    RoundGoesOn,
    /// A leader that was never heard is told only what is open, as any other (breaks ME-8).
    StrangersToldNothing,
    /// Who speaks as a member, or welcomes this one once more, is not taken for one (breaks ME-8).
    MembersUnmet,
    /// Who says what is outdated is not told (breaks ME-9).
    OutdatedUncorrected,
    /// A group at rest still lets in who asked before (breaks QU-5).
    LetInAtRest,
    /// What a creator adopts is turned away for the quota, and nobody is told (breaks RT-7).
    AdoptWithinQuota,
    /// A node goes on with half of its group (breaks MJ-2).
    HalfIsEnough,
    /// Who has died is left out of the count before all know it (breaks MJ-2).
    LossesForgotten,
    /// Who has died is counted for good (breaks MJ-1).
    SettledLost,
    /// Who leaves counts as lost (breaks MJ-1).
    LeaversLost,
    /// Nobody counts when somebody leaves while a death is not settled (breaks MJ-1).
    LeavesUncounted,
    /// Who is joining counts as one who is left (breaks MJ-1).
    JoiningLeft,
    /// Who is joining does not count (breaks MJ-1).
    JoiningUncounted,
    /// A node does not count itself (breaks MJ-1).
    OneselfUncounted,
    /// What a node has not sent yet when it gives up is sent (breaks MJ-3).
    GiveUpAloud,
    /// What peers have told counts against them when it is settled, too (breaks ME-10).
    TellersUnforgiven,
    /// Everybody is told again what is open whenever something changes (breaks ME-11).
    ToldAgain,
    /// The word of one that was told nothing counts, because it was never heard (breaks ME-11).
    KnockCounts,
    /// Who was told nothing because it was never heard is told nothing when it is heard (breaks ME-11).
    HeardUnasked,
    /// Who resigns tells nobody (breaks F10).
    ResignUntold,
    /// Who resigns tells only its leader, even if it is that one that does not hear it (breaks F10).
    ResignToLeader,
    /// Who is let in brings its suspicions before the others at once, before it can resign (breaks F10).
    ResignAccusing,
    /// A newcomer that is accused by one whom it has never heard stays if its number is lower (breaks ME-7).
    NewcomersStay,
}

#[cfg(feature = "mutations")]
impl Mutation {
    /// All of them.
    pub const ALL: [Self; 59] = [
        Self::ForgetParentHold,
        Self::NoEarlyRegistration,
        Self::FreeOnFirstRelease,
        Self::IgnoreDeadHolder,
        Self::ConfirmWithoutRegistering,
        Self::ReleaseBeforeSettled,
        Self::NoAdoption,
        Self::NoEcho,
        Self::ReleaseUnconfirmed,
        Self::AcceptOnReceipt,
        Self::NoUndo,
        Self::NoPendingOwner,
        Self::IgnoreDeadOwner,
        Self::ReleaseBusyContext,
        Self::ForgetClosedContext,
        Self::NoAttach,
        Self::KeepListening,
        Self::WelcomeEarly,
        Self::ShutdownAfterOneRound,
        Self::FreeIgnoresWaiting,
        Self::MergePastOthers,
        Self::KeepSuspicion,
        Self::CondemnUnasked,
        Self::WelcomedKnowsAll,
        Self::ForgetNeverMet,
        Self::WatermarkExact,
        Self::OldWordSettles,
        Self::JoiningNotAwaited,
        Self::KnownWhatever,
        Self::KnownUnregistered,
        Self::SettleWhatCameSince,
        Self::ActUntold,
        Self::ReopenDeadContext,
        Self::AbandonedCallRunsOn,
        Self::ShutdownIgnoresView,
        Self::AccusedAlwaysStays,
        Self::RoundGoesOn,
        Self::StrangersToldNothing,
        Self::MembersUnmet,
        Self::OutdatedUncorrected,
        Self::LetInAtRest,
        Self::AdoptWithinQuota,
        Self::HalfIsEnough,
        Self::LossesForgotten,
        Self::SettledLost,
        Self::LeaversLost,
        Self::LeavesUncounted,
        Self::JoiningLeft,
        Self::JoiningUncounted,
        Self::OneselfUncounted,
        Self::GiveUpAloud,
        Self::TellersUnforgiven,
        Self::ToldAgain,
        Self::KnockCounts,
        Self::HeardUnasked,
        Self::ResignUntold,
        Self::ResignToLeader,
        Self::ResignAccusing,
        Self::NewcomersStay,
    ];
}

/// Which rule, if any, a state machine breaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Mutant {
    #[cfg(feature = "mutations")]
    pub(crate) broken: Option<Mutation>,
}

/// Whether the given rule is broken; `false` at compile time without the feature.
macro_rules! mutated {
    ($mutant:expr, $variant:ident) => {{
        #[cfg(feature = "mutations")]
        let broken = $mutant.broken == Some(crate::mutation::Mutation::$variant);
        #[cfg(not(feature = "mutations"))]
        let broken = {
            let _ = &$mutant;
            false
        };
        broken
    }};
}
pub(crate) use mutated;
