//! What a run is like, as far as the seed does not say.

/// Settings of a run.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Which faults there are. None: the seed says.
    pub faults: Option<Faults>,
    /// The rule that is broken on purpose.
    #[cfg(feature = "mutations")]
    pub mutation: Option<farref::mutations::Mutation>,
}

/// What goes wrong in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Faults {
    /// Nothing but delays.
    None,
    /// Connections break, be it in the middle of a frame, and nothing passes between two workers for less than they wait
    /// for each other. Nobody dies, so every call must succeed.
    Links,
    /// Workers die, and some come back.
    Crashes,
    /// Two workers hear nothing of each other for longer than they wait, beside all of the above.
    Partitions,
}

impl Faults {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::Links, Self::Crashes, Self::Partitions];
}
