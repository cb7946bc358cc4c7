//! Requests of peers, and the calls that they are.

use farref::Payload;
use farref::agent::{Carried, FunctionRef, Target};

use super::state::links::{AnswerKind, Confirming, Queue};
use crate::rpc::{GlobalId, Kind};

/// A request that came, but for what it is.
pub(super) struct Request {
    pub(super) id: i64,
    pub(super) back: Queue,
    pub(super) list: bytes::Bytes,
    pub(super) storages: Vec<crate::transport::Storage>,
    /// The context, and what the sender has recorded the message as.
    pub(super) context: Option<(i64, i64)>,
    /// The method that is called, by the name that it has on the value.
    pub(super) method: Option<Box<str>>,
    /// What PyTorch's profiler knows it by, if it asked for it.
    pub(super) profile: Option<GlobalId>,
}

impl Request {
    /// How it is answered, if it is by what the runtime has taken in.
    pub(super) fn confirming(&self, kind: Kind) -> Confirming {
        Confirming {
            id: self.id,
            kind,
            back: self.back.clone(),
            profile: self.profile,
        }
    }
}

/// What a call is on and where its result goes.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    Answer(AnswerKind),
    Stay(GlobalId, GlobalId),
}

/// A call as the runtime takes it.
pub(super) struct Asked {
    pub(super) target: Target,
    /// None fetches a value.
    pub(super) function: Option<FunctionRef>,
    pub(super) carried: Vec<Carried>,
    pub(super) arguments: Payload,
    pub(super) how: AnswerKind,
}

impl Wanted {
    /// How it is answered. What stays is confirmed instead.
    pub(super) fn how(self, otherwise: AnswerKind) -> AnswerKind {
        match self {
            Self::Answer(how) => how,
            Self::Stay(..) => otherwise,
        }
    }
}
