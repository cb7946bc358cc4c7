//! The command line of `farref certs`.

use std::path::PathBuf;

/// Makes certificates for a group whose connections are encrypted (TLS)
///
/// An authority vouches for the members of a group: `init` makes one, `issue` has it sign a certificate for a worker, for
/// any worker or for one who looks on. A worker finds its own in the files that FARREF_TLS_CERT, FARREF_TLS_KEY and
/// FARREF_TLS_CA name.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  farref certs init authority
      an authority; its key, authority/ca-key.pem, stays where it is
  farref certs issue authority --worker ps --worker trainer0 --out handed-out
      ps.pem, ps.key, trainer0.pem, trainer0.key and ca.pem, in the folder handed-out
  farref certs issue authority --worker worker0 --worker worker1 --as host0 --out host0
      one certificate for two workers of a host: host0.pem, host0.key
  farref certs issue authority --observer --out me
      for farref inspect, top and dashboard: observer.pem, observer.key
  farref certs show handed-out/ps.pem
      whose it is, and until when

For a group on one machine `farref launch --tls` does all of it by itself.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(clap::Subcommand)]
pub(super) enum Command {
    Init(Init),
    Issue(Issue),
    Show(Show),
}

/// Makes an authority: ca.pem, for everybody, and ca-key.pem, for nobody
///
/// What is there already is never replaced.
#[derive(clap::Args)]
pub(super) struct Init {
    /// The folder for it; it is made if it is not there
    #[arg(value_name = "DIR")]
    pub(super) folder: PathBuf,

    /// For how many days it counts; so its certificates, at most
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(super) days: u32,

    /// What it is called in certificates; for people only
    #[arg(long, default_value = "farref")]
    pub(super) name: String,
}

/// Issues a certificate with a key of its own: NAME.pem and NAME.key
///
/// Issuing again for the same name replaces both. Workers that run take the new ones by themselves.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("bearer").required(true).multiple(false)))]
pub(super) struct Issue {
    /// The folder of the authority
    #[arg(value_name = "DIR")]
    pub(super) folder: PathBuf,

    /// For the worker with this name; several times for several workers, with a certificate each
    #[arg(long, value_name = "NAME", group = "bearer")]
    pub(super) worker: Vec<String>,

    /// For one who looks on and does not join: observer.pem, observer.key
    #[arg(long, group = "bearer")]
    pub(super) observer: bool,

    /// For a worker with any name: any-worker.pem, any-worker.key. It can speak for all of them
    #[arg(long, group = "bearer")]
    pub(super) any_worker: bool,

    /// One certificate for all of these workers, and what its files are called
    #[arg(long = "as", value_name = "NAME")]
    pub(super) stem: Option<String>,

    /// Where to put them, with a copy of ca.pem; it is made if it is not there [default: the authority's folder]
    #[arg(long, value_name = "DIR2")]
    pub(super) out: Option<PathBuf>,

    /// For how many days they count; no longer than their authority
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(super) days: u32,
}

/// Says whose the certificates in a file are, and until when they count
#[derive(clap::Args)]
pub(super) struct Show {
    /// A PEM file
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
}
