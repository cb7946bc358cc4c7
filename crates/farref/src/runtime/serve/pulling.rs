//! Answering those who read a stream: the next batch of its items.
//!
//! Not an ordinary function: it may wait for long before it has anything to return, and there may be many that wait.
//! So room for its answer is set aside when there is an item, and not before it begins (D5). And the program is not asked
//! whether the reader may call it: who has a stream may read it, as who has a reference may fetch its value.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::responder::span_of;
use super::running::{Packed, enter, supervise, wait_for_receiver};
use super::{spawn, split};
use crate::agent::Failure;
use crate::runtime::NEXT_ITEMS;
use crate::runtime::function::{Function, Mode};
use crate::runtime::job::{Job, Responder};
use crate::runtime::registry::FunctionRegistration;
use crate::runtime::stream::Producer;
use crate::values::{Encode, Exclusive, RefMut, ValueTicket};

/// Asks for the next batch of a stream's items.
pub(crate) struct Pull;

impl Function for Pull {
    const NAME: &'static str = NEXT_ITEMS;
    const SIGNATURE: &'static str = "next(&mut self, reader: u64) -> batch";
    const TIMEOUT: Option<Duration> = Some(Duration::MAX);
    const MODE: Mode = Mode::Task;
    type Access = Exclusive<Producer>;
    /// Which of its readers the worker is that asks.
    type Arguments = (u64,);
    type Output = ();

    async fn run(_: RefMut<Producer>, _: (u64,)) -> Result<(), Failure> {
        Err(Failure::BadResult("a batch is not made here".to_owned()))
    }

    fn encoder() -> Option<Encode<()>> {
        None
    }
}

inventory::submit! {
    FunctionRegistration {
        serve: serve_pull,
        ..FunctionRegistration::of::<Pull>()
    }
}

fn serve_pull(job: Job) {
    let span = span_of(&job.responder);
    let (responder, packed, ticket) = split(job);
    let runtime = responder.core().runtime.clone();
    spawn(&runtime, span, pull(responder, ticket, packed));
}

async fn pull(responder: Responder, ticket: Option<ValueTicket>, packed: Packed) {
    let outcome = {
        let to = &responder;
        let pulling = pin!(Some(async move {
            let (reader,) = packed.read::<Pull>(to)?;
            let mut producer = enter::<Pull>(wait_for_receiver(ticket).await?)?;
            if !producer.admits(to.core(), (to.call.caller, reader)) {
                return Ok((Producer::refusal(), None));
            }
            poll_fn(|context| producer.poll_ready(context)).await;
            let room = to.room(to.reserve(&producer.expected)).await;
            let core = to.core();
            let batch = poll_fn(|context| Poll::Ready(producer.fill(context, core))).await?;
            producer.expected.learn(batch.payload.len() as u64);
            Ok((batch, room))
        }));
        supervise(&to.call, pulling).await
    };
    responder.finish_written(outcome);
}
