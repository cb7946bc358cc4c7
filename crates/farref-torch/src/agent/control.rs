//! What the runtime's tables of references and contexts say to peers, as PyTorch's messages.

use std::sync::Arc;

use farref::agent::Control;
use farref_proto::Share;

use super::messages::{exception_message, profiled, ready};
use super::state::AgentShared;
use super::state::ids::{self, context_number};
use super::state::links::{Link, Pending, ToSend};
use crate::rpc;

impl AgentShared {
    /// What the runtime's tables say to a peer.
    pub(super) fn enqueue_control(self: &Arc<Self>, link: &Arc<Link>, control: Control) {
        match control {
            Control::Register(list) => {
                for registration in list {
                    let share = registration.share;
                    let message = rpc::Message::ForkRequest {
                        rref: ids::rref_id(share.rref),
                        fork: ids::fork_id(share.fork),
                    };
                    self.ask(link, &message, Pending::Register(share));
                }
            }
            Control::Release(list) => {
                for share in list {
                    if !link.delete_later(share) {
                        self.delete(link, share);
                    }
                }
            }
            Control::Accept(list) => {
                for share in list {
                    let fork = ids::fork_id(share.fork);
                    self.ask(link, &rpc::Message::ChildAccept { fork }, Pending::Quiet);
                }
            }
            Control::ContextCleanup(list) => {
                for (context, _) in list {
                    let message = rpc::Message::Cleanup {
                        context: context_number(context),
                    };
                    self.ask(link, &message, Pending::Cleanup(context));
                }
            }
            Control::Confirm(list) => {
                for share in list {
                    let Some(confirming) = link.confirming(share) else {
                        continue;
                    };
                    let message = match confirming.kind {
                        rpc::Kind::RemoteRet => rpc::Message::RemoteRet {
                            rref: ids::rref_id(share.rref),
                            fork: ids::fork_id(share.fork),
                        },
                        _ => rpc::Message::Ack,
                    };
                    let answer = profiled(message.encode(), confirming.profile);
                    let (kind, bytes) = answer;
                    let ready = ready(kind, confirming.id, bytes);
                    drop(confirming.back.send(ToSend::Ready(ready)));
                }
            }
            Control::Decline(list) => {
                for declined in list {
                    if let Some(confirming) = link.confirming(declined.share) {
                        let text = format!("the value is not there: {:?}", declined.reason);
                        let (kind, bytes) = exception_message(&text);
                        let ready = ready(kind, confirming.id, bytes);
                        drop(confirming.back.send(ToSend::Ready(ready)));
                    }
                }
            }
            // TA-1, TA-2: what PyTorch has no word for.
            _ => {}
        }
    }

    /// Tells the owner that a reference is gone.
    pub(super) fn delete(self: &Arc<Self>, link: &Arc<Link>, share: Share) {
        let message = rpc::Message::UserDelete {
            rref: ids::rref_id(share.rref),
            fork: ids::fork_id(share.fork),
        };
        self.ask(link, &message, Pending::Quiet);
    }

    /// Queues a request of ours.
    pub(super) fn ask(
        self: &Arc<Self>,
        link: &Arc<Link>,
        message: &rpc::Message<'_>,
        pending: Pending,
    ) {
        let id = self.ids.next();
        if link.expect(id, pending) {
            let (kind, bytes) = message.encode();
            self.queue(link, ToSend::Ready(ready(kind, id, bytes)));
        }
    }
}
