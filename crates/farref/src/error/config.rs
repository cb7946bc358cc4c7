//! What is wrong with how a worker was set up.

use std::net::IpAddr;

use farref_proto::NodeId;

use super::tls::TlsError;
use crate::rendezvous::ParseRendezvousError;

/// A setting that is missing or makes no sense.
///
/// ```
/// use farref::{ConfigError, Error, Worker};
///
/// # #[tokio::main]
/// # async fn main() {
/// let Err(Error::Config(error)) = Worker::builder("alone").join().await else {
///     panic!("nobody said where to meet");
/// };
/// assert!(matches!(error, ConfigError::NoRendezvous));
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Nothing says where the workers meet.
    #[error(
        "nothing says where the workers meet: set MASTER_ADDR and MASTER_PORT or \
         FARREF_RENDEZVOUS, or call `.rendezvous(\"tcp://host:port\")`"
    )]
    NoRendezvous,

    /// What was given as the place where the workers meet is none.
    #[error("`{place}` is no rendezvous: {reason}")]
    BadRendezvous {
        /// What was given.
        place: String,
        /// What is wrong with it.
        reason: ParseRendezvousError,
    },

    /// The worker has neither a name nor a rank.
    #[error("the worker has no name: set FARREF_NAME or a rank")]
    NoName,

    /// The workers would talk over a network without encryption, and nobody said that they may.
    #[error(
        "the workers would talk over the network (this one at {address}) without encryption: \
         give all of them certificates (`.tls(..)`, or FARREF_TLS_CERT, FARREF_TLS_KEY and FARREF_TLS_CA; \
         `farref certs` makes them); or say `.insecure()` or FARREF_INSECURE=1 if the network is trusted, \
         and set a token; or meet at 127.0.0.1 if all are on this host"
    )]
    Unencrypted {
        /// Where the worker would be.
        address: IpAddr,
    },

    /// Any user of this host could connect to the worker, and nobody said that they may.
    #[error(
        "any user of this host could connect to this worker at {address}: give the workers of the group a \
         token (FARREF_TOKEN, or `.token(..)`; `farref launch` makes one), let them use Unix sockets, or \
         say `.insecure()` or FARREF_INSECURE=1"
    )]
    NoToken {
        /// Where the worker would listen.
        address: IpAddr,
    },

    /// The worker's certificate is not for its name.
    #[error(
        "worker {name:?} has a certificate of {bearer}: give it one with its own name (`farref certs issue`; for \
         programs that choose their names `farref launch --tls-any-name`), or the name of its certificate"
    )]
    CertificateName {
        /// The worker's name.
        name: String,
        /// Whom the certificate names.
        bearer: String,
    },

    /// The worker's certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] TlsError),

    /// The worker is not among the members of the group that it was attached to.
    #[error("{node} is not among the members of its group")]
    NotInGroup {
        /// What the group calls it.
        node: NodeId,
    },

    /// The system does not give what every worker needs.
    #[error("the system gives no {what}: {reason}")]
    System {
        /// What it does not give.
        what: &'static str,
        /// What it says.
        reason: String,
    },
}
