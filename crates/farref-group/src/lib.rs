//! What programs share that start groups of workers on one machine, such as the command `farref`, its demo, the
//! benchmarks and the chaos tests: tokens and the folder where they are kept, limits of the processes.

#![forbid(unsafe_code)]

pub mod folder;
mod open_files;
mod threads;
mod token;

pub use open_files::allow as allow_open_files;
pub use threads::threads_to_limit;
pub use token::{
    GroupToken, PublishedToken, VARIABLE as TOKEN_VARIABLE, find as find_token,
    from_environment as token_from_environment,
};
