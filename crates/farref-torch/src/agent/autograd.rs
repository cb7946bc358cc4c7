//! Gradients between this worker's engine and others'.

use std::sync::Arc;

use bytes::Bytes;
use farref::agent::ContextId;
use farref::context::{ContextScope, Extension};
use farref::{Part, Peer, Worker};
use farref_autograd::engine::{
    self, Carrier, Cause, Delivery, Engine, ForSend, Parcel, PassFailure, Receipt,
};
use farref_autograd::{Candle, Tensor};
use tokio::sync::oneshot;

use super::messages::{exception_message, ready};
use super::responses::plain_answer;
use super::state::links::{Link, Pending, Queue, ToSend};
use super::state::{AgentShared, ids};
use super::tensors;
use crate::rpc::tensors::Dtype;
use crate::rpc::{Kind, Message};
use crate::transport::Outgoing;
use crate::value::{self, Received, TensorEntry};

/// Brings parcels to other workers as PyTorch's messages.
struct TorchCarrier(Arc<AgentShared>);

/// Has the worker's engine send gradients by this wire. `worker` is the one whose agent this is.
pub(crate) fn connect(shared: &Arc<AgentShared>, worker: &Worker) {
    Engine::<Candle>::of(worker).carry_by(Arc::new(TorchCarrier(Arc::clone(shared))));
    let closing = worker.extension::<Forgetting>();
    drop(closing.0.set(Arc::clone(shared)));
}

/// Forgets what is known of a context when it is over.
#[derive(Default)]
struct Forgetting(std::sync::OnceLock<Arc<AgentShared>>);

impl Extension for Forgetting {
    fn context_closed(&self, _: &Worker, context: ContextId) {
        if let Some(shared) = self.0.get() {
            shared.arrivals.forget(ids::context_number(context));
        }
    }
}

impl Carrier<Candle> for TorchCarrier {
    fn deliver(&self, scope: &ContextScope, to: &Peer, parcel: Parcel<Tensor>) -> Delivery {
        let shared = Arc::clone(&self.0);
        let (scope, to) = (scope.clone(), to.clone());
        Box::pin(async move {
            let failed = |cause| {
                let worker = to.name().to_owned();
                Ok(Receipt {
                    unknown: Vec::new(),
                    failure: Some(PassFailure { worker, cause }),
                })
            };
            let Some(link) = shared.link_by_name(to.name()) else {
                return failed(Cause::WorkerLost);
            };
            let mut answers = Vec::new();
            for (number, gradients) in parcel.gradients {
                let context = ids::context_number(scope.id());
                let message = shared.compose_gradients(
                    &link,
                    context,
                    number,
                    gradients,
                    parcel.retain_graph,
                );
                let (id, message) = match message {
                    Ok(Some(message)) => message,
                    Ok(None) => continue,
                    Err(error) => return failed(Cause::Compute(error)),
                };
                let (sender, answer) = oneshot::channel();
                if link.expect(id, Pending::Own(sender)) {
                    shared.queue(&link, ToSend::Ready(message));
                }
                answers.push(answer);
            }
            for answer in answers {
                match answer.await {
                    Ok(answer) if answer.kind == Kind::BackwardDone.code() => {}
                    Ok(answer) => {
                        let text = plain_answer(&answer).err().unwrap_or_default();
                        return failed(Cause::Delivery(text));
                    }
                    Err(_) => return failed(Cause::WorkerLost),
                }
            }
            Ok(Receipt::default())
        })
    }
}

/// The gradients of a request: which tensor of the message each is, and the tensors.
pub(super) type Gradients = (Vec<usize>, Vec<TensorEntry>, Vec<Part>);

impl AgentShared {
    /// The gradients of the tensors that came in one message. PyTorch waits for those of all tensors that it
    /// sent, so where there is none there are zeros.
    fn compose_gradients(
        &self,
        link: &Link,
        context: i64,
        number: u64,
        gradients: Vec<Option<Tensor>>,
        retain_graph: bool,
    ) -> Result<Option<(i64, Outgoing<Part>)>, String> {
        let received = Received {
            context,
            from: ids::number_of(link.node),
            message: number,
        };
        let Some(arrival) = self.arrivals.get(received) else {
            return Ok(None);
        };
        let mut sums: Vec<Option<Tensor>> = vec![None; arrival.tensors.len()];
        for (gradient, place) in gradients.into_iter().zip(arrival.read) {
            let (Some(gradient), Some(sum)) = (gradient, sums.get_mut(place)) else {
                continue;
            };
            // A tensor that was read twice has two.
            *sum = Some(match sum.take() {
                Some(sum) => Tensor::from((&*sum + &*gradient).map_err(|error| error.to_string())?),
                None => gradient,
            });
        }
        let all = sums
            .into_iter()
            .zip(arrival.tensors)
            .map(|(sum, (dtype, shape))| match sum {
                Some(gradient) => {
                    let (dtype, part) =
                        value::element_of(&gradient).map_err(|error| error.to_string())?;
                    Ok((dtype, gradient.dims().to_vec(), part))
                }
                None => Ok((dtype, shape.clone(), zeros(dtype, &shape))),
            });
        let all = all.collect::<Result<Vec<_>, String>>()?;
        let message = Message::Backward {
            gradients: (0..all.len()).collect(),
            context,
            autograd: number as i64,
            retain_graph,
        };
        let (kind, payload) = message.encode();
        let (tensor_list, storages) =
            tensors::send_gradients(all).map_err(|error| error.to_string())?;
        let id = self.ids.next();
        let message = Outgoing {
            kind: kind.code(),
            id,
            payload: payload.into(),
            tensor_list,
            storages,
        };
        self.judge(&message).map_err(|error| error.to_string())?;
        Ok(Some((id, message)))
    }

    /// Gradients of a peer's, for tensors that this worker sent.
    pub(super) fn receive_gradients(
        self: &Arc<Self>,
        link: &Arc<Link>,
        work: Gradients,
        context: i64,
        autograd: i64,
        retain_graph: bool,
        (id, back): (i64, Queue),
    ) {
        let (shared, node) = (Arc::clone(self), link.node);
        self.spawn(async move {
            let outcome = shared
                .run_backward(node, work, context, autograd, retain_graph)
                .await;
            let (kind, bytes) = match outcome {
                Ok(()) => Message::BackwardDone.encode(),
                Err(text) => {
                    let text = format!("On worker {} (Rust): {text}", shared.name);
                    exception_message(&text)
                }
            };
            drop(back.send(ToSend::Ready(ready(kind, id, bytes))));
        });
    }

    async fn run_backward(
        &self,
        from: farref::agent::NodeId,
        (places, entries, parts): Gradients,
        context: i64,
        autograd: i64,
        retain_graph: bool,
    ) -> Result<(), String> {
        let worker = self.worker.get().ok_or("the worker is still joining")?;
        let worker = worker.upgrade().ok_or("the worker is gone")?;
        let id = self.incarnations.context(context);
        let scope = ContextScope::find(&worker, id);
        let scope = scope.ok_or_else(|| format!("there is no context {context} here"))?;
        let (owner, number) = ids::split_number(autograd);
        if owner != self.me {
            return Err(format!("message {autograd} was not sent from here"));
        }
        let mut uses = vec![0; entries.len()];
        let gradients = places.into_iter().map(|place| {
            let entry = entries.get(place).ok_or("a gradient that did not come")?;
            let value::TensorData::Parts(own) = &entry.data else {
                return Err("a gradient without bytes".to_owned());
            };
            let part = own.get(uses[place]).or_else(|| own.last());
            uses[place] += 1;
            let part = part.and_then(|part| parts.get(*part as usize));
            let part = part.ok_or("a gradient without bytes")?.clone();
            let tensor = value::tensor_of(entry.dtype, entry.shape.clone(), part, false);
            tensor.map(Some).map_err(|error| error.to_string())
        });
        let gradients = gradients.collect::<Result<Vec<_>, String>>()?;
        let sent: ForSend<Tensor> = (number, gradients);
        let received = engine::receive_gradients::<Candle>(&scope, from, sent, retain_graph);
        received.await.map_err(|failure| failure.to_string())
    }
}

fn zeros(dtype: Dtype, shape: &[usize]) -> Part {
    let count: usize = shape.iter().product();
    Part::from(Bytes::from(vec![0; count * dtype.size()]))
}
