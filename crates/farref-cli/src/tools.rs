//! What the demo, the benchmarks and the chaos tests share with the command: they start groups of
//! processes on this machine, too.

pub use crate::group_tls::{GroupTls, VARIABLES as TLS_VARIABLES};
pub use crate::group_token::{
    GroupToken, PublishedToken, VARIABLE as TOKEN_VARIABLE,
    from_environment as token_from_environment,
};
pub use crate::launch::threads_to_limit;
pub use crate::open_files::allow as allow_open_files;
pub use crate::view::text::short_type;
