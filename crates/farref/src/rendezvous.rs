//! How workers find each other, which is a crate of its own: what of `farref-rendezvous` this one uses, and
//! hands on to programs.

#[cfg(feature = "etcd")]
#[doc(inline)]
pub use farref_rendezvous::EtcdStore;
#[doc(inline)]
pub use farref_rendezvous::{
    BrokenGuarantee, EtcdPlace, FileStore, MemoryStore, ParseRendezvousError, Rendezvous,
    RendezvousError, Store, StoreDialect, StoreError, StoreFuture, StoreLimits, StorePresence,
    StoreServer, TcpStoreClient, check_store,
};

pub(crate) use farref_rendezvous::environment::{
    Settings, advertised_address, host_id, without_password,
};
pub(crate) use farref_rendezvous::group::{
    Address, Card, CertificateTag, Directory, Entry, Liveness, LivenessProbe, Plan, TokenTag,
    announce_run, check_name, check_rank, enter, key_prefix, latest_group,
};
pub(crate) use farref_rendezvous::{Opened, host_store, look, open, random};
