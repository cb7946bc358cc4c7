//! The protocol of far references as pure state machines.
//!
//! This crate does no I/O, reads no clock, draws no random numbers and never lets the order of a
//! hash map out. Time and messages come in as arguments; messages and events go out through an
//! [`Outbox`]. The same code therefore runs in production, in unit tests, in the simulator
//! (`farref-sim`), in the model checker (`farref-model`) and under a fuzzer.
//!
//! | part | what it knows |
//! | --- | --- |
//! | [`RefTable`] | who owns which value, who holds it, when it may be freed |
//! | [`ContextTable`] | which workers take part in an autograd context, when it is over |
//! | [`Membership`] | who is in the group, who is gone, and since when everyone knows |
//! | [`Quiescence`] | whether every worker is at rest, for a graceful shutdown |
//! | [`Node`] | all of these for one worker, and its open calls |
//! | [`Session`] | exactly-once, in-order delivery to one peer over any number of connections |
//!
//! # Example
//!
//! A worker creates a value on another one, which later frees it:
//!
//! ```
//! use farref_proto::{Event, Fingerprint, Membership, Node, NodeConfig, NodeId, Outbox, Target, Want};
//!
//! let (a, b) = (NodeId::new(0, 1), NodeId::new(1, 1));
//! let node = |me| Node::<String>::new(me, Membership::founding(me, [a, b]), NodeConfig::default());
//! let (mut user, mut owner) = (node(a), node(b));
//! let (mut from_user, mut from_owner) = (Outbox::new(), Outbox::new());
//!
//! // The user asks for a value that stays with the owner, and holds a reference at once.
//! let type_of_value = Fingerprint(0x5eed_0f7e_57ed_7e57);
//! let call = user.call(b, Want::Reference(type_of_value), &[], None, &mut from_user)?;
//! let Target::Stay(creation) = call.target else { unreachable!() };
//! let rref = creation.share.rref;
//!
//! // The owner registers it, confirms, and computes the value.
//! owner.receive_call(a, &call, &mut from_owner)?;
//! owner.finish_creation(a, rref, None, "hello".to_owned(), &mut from_owner);
//! let (_, confirm) = from_owner.pop_control().expect("a confirmation");
//! user.handle(b, confirm, &mut from_user)?;
//!
//! // The last handle goes; the owner frees the value.
//! user.drop_handle(rref, &mut from_user);
//! let (_, release) = from_user.pop_control().expect("a release");
//! owner.handle(a, release, &mut from_owner)?;
//! let freed = from_owner.pop_event();
//! assert_eq!(freed, Some(Event::Freed { rref, value: "hello".to_owned() }));
//! assert!(user.is_empty() && owner.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod calls;
mod context;
mod error;
mod event;
mod hash;
mod ids;
mod limits;
mod membership;
mod message;
mod mutation;
mod node;
mod outbox;
#[cfg(test)]
mod random_cases;
mod refs;
mod residue;
mod session;
mod slab;
mod standing;
mod time;
mod watermarks;

pub use context::{CONTEXT_SHARDS, ContextTable};
pub use error::{CallError, ContextError, PeerMisbehaved, RefError};
pub use event::{Event, Waiter};
pub use ids::{
    ContextId, Fingerprint, ForkId, GroupId, Incarnation, MessageId, NodeId, RRefId, WorkerId,
};
pub use limits::{MAX_BATCH, MAX_WORKERS};
pub use membership::{Membership, Quiescence, TooFew, View};
pub use message::{
    Adoption, AnswerHead, CallHead, Carried, Control, Creation, DeclineReason, Declined,
    Registration, Share, Target,
};
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use node::{Answered, Arrival, Node, NodeConfig, Want};
pub use outbox::Outbox;
pub use refs::{Fetch, Leak, RefCounters, RefTable, RefTableConfig};
pub use residue::Residue;
pub use session::{
    Acks, Frame, HandshakeError, Hello, Lane, ResetReason, SESSION_VERSION, Session, SessionConfig,
    SessionCounters, SessionError, SessionEvent,
};
pub use standing::{Departure, Digest, Phase, Standing, Status};
pub use time::Time;
