//! The command line of `farref inspect`.

use crate::view::place::Looking;
use crate::view::references::By;

const EXAMPLES: &str = "Examples:
  farref inspect 127.0.0.1:29500                    workers, calls, references in groups
  farref inspect 127.0.0.1:29500 --by line          which source lines hold most
  farref inspect 127.0.0.1:29500 --filter Tensor    who keeps these alive, and since which line
  farref inspect 127.0.0.1:29500 --json | jq '.workers[].snapshot.open_calls'";

/// Prints what running workers hold, do and wait for
///
/// Looks once at every worker of a group, from outside: nothing is changed, nobody waits. ADDR is where
/// the workers meet, or the address of one of them: host:port, unix:name or file:///path.
#[derive(clap::Args)]
#[command(
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}

Columns:
  life       which life of this rank: grows with every start
  state      as the other workers see it; with `?` if they do not agree
  open       calls in either direction that are not answered
  ctxs       autograd contexts
  made       calls made since the worker began; served: carried out for others
  queued     bytes and messages that peers have not acknowledged
  held back  calls that wait because the peer has enough to do
  blocking   plain functions that wait for a thread
  got at     the source line where a holder made its reference; `received` if it was sent

The exit code is 0 if all workers have answered, 1 if not.")
)]
pub(crate) struct Arguments {
    /// Where the workers meet, or one of them
    #[arg(value_name = "ADDR")]
    pub(super) address: String,

    /// Print JSON, with the same field names in all versions 0.x
    #[arg(long)]
    pub(super) json: bool,

    /// Only references whose id, type, owner, holder or source line contains this, with all holders
    #[arg(long, value_name = "TEXT")]
    pub(super) filter: Option<String>,

    /// What to group references by
    #[arg(long, value_enum, default_value_t)]
    pub(super) by: By,

    /// List every reference with all its holders
    #[arg(long, conflicts_with = "by")]
    pub(super) references: bool,

    /// List the links between workers
    #[arg(long)]
    pub(super) links: bool,

    /// Types with their modules, source lines with their columns, nothing cut
    #[arg(long)]
    pub(super) full: bool,

    #[command(flatten)]
    pub(super) looking: Looking,
}
