//! The law book of whole nodes: calls, answers, deaths, contexts and shutdown, on a cluster whose
//! messages only the test moves.
//!
//! | file | laws |
//! | --- | --- |
//! | `calls` | capnp-rpc's laws of release and cancel; the transaction that a call is |
//! | `carrying` | references in calls and answers, and the undo at each point |
//! | `contexts` | autograd contexts across nodes |
//! | `deaths` | members that die, leave and return |
//! | `elsewhere` | members that somebody else admits and dismisses |
//! | `misbehaviour` | peers that break the protocol |
//! | `records` | what a driver keeps for calls |
//! | `shutdown` | quiescence |
//! | `random` | the same laws under orders nobody thought of |

mod calls;
mod carrying;
mod cluster;
mod contexts;
mod deaths;
mod elsewhere;
mod misbehaviour;
mod random;
mod records;
mod shutdown;
