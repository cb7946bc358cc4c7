//! Asking the producer of a stream for its next items.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use crate::api::pending::{AwaitsPlace, complete};
use crate::codec::Payload;
use crate::error::{Error, FunctionName, Result};
use crate::runtime::current::Current;
use crate::runtime::handle::Handle;
use crate::runtime::registry::FunctionEntry;
use crate::runtime::serve::pulling::Pull as PullFunction;
use crate::runtime::{CallSpec, Core, NotMade, OpenCall, trace, value_scope};
use crate::support::clock::Instant;
use crate::support::mutation::mutated;

/// A batch as it came.
pub(super) type Answer = (Payload, Vec<Arc<Handle>>);

/// A call for the next batch. Dropped, it is cancelled.
///
/// It is nobody's part: it has no time limit, of its own or of the function that reads the stream, belongs to no
/// context, and nobody counts as waiting for it. The stream may be read on elsewhere.
pub(super) struct Pull {
    core: Arc<Core>,
    state: PullState,
}

enum PullState {
    Failed(Error),
    /// Too many calls wait for the peer: this one is made when there is a place for it.
    NoPlace(Box<CallSpec>, AwaitsPlace),
    Open(OpenCall),
    Done,
}

impl Pull {
    /// Makes the call.
    pub(super) fn begin(producer: &Arc<Handle>, reader: u64, name: &FunctionName) -> Result<Self> {
        let held = producer.held()?;
        let core = Arc::clone(&held.core);
        let entry = core.registry.entry::<PullFunction>();
        let codec = core.agent().codec();
        let encoded = value_scope::write_typed::<(u64,)>(&core, Some(held.owner), || {
            codec.encode(&(reader,))
        });
        let encoded = encoded.map_err(|unwritten| match unwritten {
            value_scope::Unwritten::Foreign(error) => error,
            value_scope::Unwritten::Codec(reason) => Error::Codec {
                what: "the arguments",
                function: name.clone(),
                action: "written",
                reason,
            },
        })?;
        let call = CallSpec {
            function: entry.map(FunctionEntry::reference),
            name: name.clone(),
            receiver: Some(Arc::clone(producer)),
            encoded,
            deadline: match mutated!(PullWithinCall) {
                true => Current::get().and_then(|current| current.deadline),
                false => None,
            },
            now: Instant::now(),
            remaining: None,
            trace: trace::of_call(Current::get().as_deref()),
            callers: Vec::new(),
            context: None,
        };
        let mut pull = Self {
            core,
            state: PullState::Done,
        };
        pull.make(held.owner, Box::new(call));
        Ok(pull)
    }

    fn make(&mut self, to: farref_proto::NodeId, mut call: Box<CallSpec>) {
        self.state = match self.core.begin(to, &mut call) {
            Ok(open) => PullState::Open(open),
            Err(NotMade::Failed(error)) => PullState::Failed(error),
            Err(NotMade::NoPlace(told)) => {
                let core = Arc::clone(&self.core);
                PullState::NoPlace(call, AwaitsPlace { core, to, told })
            }
        };
    }

    /// Whether it does not wait for a place: what is asked for after it comes after it.
    pub(super) fn is_made(&self) -> bool {
        !matches!(self.state, PullState::NoPlace(..))
    }

    /// Waits for the batch.
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
        name: &FunctionName,
    ) -> Poll<Result<Answer>> {
        while let PullState::NoPlace(_, waits) = &mut self.state {
            // Whoever was to tell goes without a word only with the peer, or when this worker is out of the group.
            let _told = ready!(Pin::new(&mut waits.told).poll(context));
            if let PullState::NoPlace(mut call, waits) =
                std::mem::replace(&mut self.state, PullState::Done)
            {
                call.made_at(Instant::now());
                self.make(waits.to, call);
                if matches!(self.state, PullState::Failed(_)) {
                    // The place is still there.
                    waits.core.pass_place_on(waits.to);
                }
            }
        }
        let reply = match &mut self.state {
            PullState::Open(open) => ready!(Pin::new(&mut open.reply).poll(context)),
            _ => None,
        };
        let outcome = match (std::mem::replace(&mut self.state, PullState::Done), reply) {
            (PullState::Open(_), Some((outcome, _))) => outcome,
            (PullState::Failed(error), _) => Err(error),
            // The sender goes without a word only if this worker is being torn down.
            _ => Err(self.core.not_member()),
        };
        Poll::Ready(outcome.map_err(|error| {
            self.core.metrics.failed.add(1);
            explained(complete(error, name.clone(), None, None).0, name)
        }))
    }
}

/// The producer is a value of its worker's, but to whoever reads the stream it is what its function does there.
fn explained(error: Error, name: &FunctionName) -> Error {
    match error {
        Error::OwnerLost { owner } => Error::PeerLost {
            peer: owner,
            function: name.clone(),
            cause: None,
        },
        error => error,
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        if let PullState::Open(open) = &self.state
            && self.core.cancel(open.peer, open.request)
        {
            self.core.metrics.cancelled.add(1);
        }
    }
}
