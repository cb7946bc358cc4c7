//! What programs are told, and how they take it.

use farref_proto::{Event, MessageId, NodeId, RRefId};

use crate::happening::Happening;
use crate::process::{Goal, Value};
use crate::world::World;

impl World {
    pub(crate) fn on_program_event(&mut self, node: NodeId, event: Event<Value>) {
        match event {
            Event::Freed { rref, value } => self.on_freed(node, rref, value),
            Event::Fetched {
                waiter,
                rref,
                outcome,
            } => {
                if let Err(error) = &outcome {
                    self.check_use(waiter.node, rref, None, Err(error.clone()));
                }
                self.answer(node, waiter.node, waiter.request, &[], outcome.ok());
            }
            Event::Confirmed(rref) => {
                self.no_longer_unconfirmed(node, rref);
                if let Some(fact) = self.oracle.refs.get_mut(&rref)
                    && rref.origin == node
                {
                    fact.confirmed = true;
                }
            }
            Event::Lost { rref, error } => {
                self.no_longer_unconfirmed(node, rref);
                self.check_use(node, rref, None, Err(error));
            }
            Event::PeerLost {
                node: peer,
                request,
            } => self.on_peer_lost(node, peer, request),
            Event::Abandoned {
                node: peer,
                request,
            } => {
                let goal = Goal::Answer(peer, request);
                let Some(process) = self.process(node) else {
                    return;
                };
                let mut tasks = process.program.tasks.iter();
                if let Some((&id, _)) = tasks.find(|(_, task)| task.goal == goal) {
                    // Stops at once: whatever it waits for, nobody wants its answer.
                    if let Some(task) = process.program.tasks.get_mut(&id) {
                        task.awaiting = 0;
                    }
                    for call in &mut process.program.outstanding {
                        if call.parent == Some(id) {
                            call.parent = None;
                        }
                    }
                    self.schedule(self.now, Happening::Task { node, task: id });
                } else {
                    // A fetch that was still waiting.
                    self.answer(node, peer, request, &[], None);
                }
            }
            Event::ContextFailed { context, .. } => {
                self.oracle.contexts.entry(context).or_default().failed = true;
            }
            Event::ContextClosed(context) => self.on_context_closed(node, context),
            Event::ContextReleased(context) => self.on_context_released(node, context),
            Event::ContextNotReleased(context) => {
                if let Some(process) = self.process(node) {
                    process.program.releases.remove(&context);
                }
            }
            _ => {}
        }
    }

    fn on_peer_lost(&mut self, node: NodeId, peer: NodeId, request: MessageId) {
        if let Some(call) = self.take_outstanding(node, peer, request) {
            if let Some(process) = self.process(node) {
                process.program.parked.remove(&(peer, request));
            }
            return self.outcome(node, &call);
        }
        let unsent = self
            .process(node)
            .is_some_and(|p| p.program.unsent.remove(&(peer, request)));
        if !unsent {
            let what = format!("{node} lost a call to {peer} that it never made");
            self.oracle.violated("F2", self.now, what);
        }
    }

    fn no_longer_unconfirmed(&mut self, node: NodeId, rref: RRefId) {
        if let Some(process) = self.process(node) {
            process.program.unconfirmed.remove(&rref);
        }
    }
}
