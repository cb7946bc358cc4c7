//! Workers of a dynamic group that are gone without having left: how that is known, and what they leave in the store.
//!
//! A worker that dies stays on the list, where all who join or leave call it in vain, and if it was joining or leaving it
//! has the turn to change the group. PyTorch's workers change nothing about either. Whoever of this crate waits for its
//! own turn looks now and then whether the one that has it is still there, and gives the turn up for one that is
//! gone (GR-5). A member that is still on the list is taken off it by `crate::agent`, which also tells the others.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::change::Change;
use super::error::GroupError;
use super::store::GroupStore;
use crate::transport::{PipeError, probe};

/// The longest that one look may take.
const LOOK: Duration = Duration::from_secs(2);
/// Between two looks: at first, as the system closes what a process had one by one, and later.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long nothing has to come back from a host to be taken for gone. Its pipe has been silent before.
const SILENCE: Duration = Duration::from_secs(30);
/// Within this time one that joins says where it listens, once it has its turn. Before, the store has nothing of it, or what
/// an earlier worker of its name has said.
const JOINER: Duration = Duration::from_secs(10);

/// How often is looked after the one that has the turn.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// What is seen where a worker listened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sight {
    Listens,
    /// The host is there, and nobody listens.
    Refuses,
    /// Nothing comes back.
    Silent,
}

async fn look(address: &str, my_name: &str) -> Sight {
    match timeout(LOOK, probe(address, my_name)).await {
        Ok(Err(PipeError::Unreachable { error, .. })) => match error.kind() {
            ErrorKind::ConnectionRefused => Sight::Refuses,
            _ => Sight::Silent,
        },
        Err(_) => Sight::Silent,
        // If it is no address nobody knows.
        Ok(Ok(()) | Err(_)) => Sight::Listens,
    }
}

/// Whether the process is gone that listened there, as far as can be known: nobody listens any more, or nothing comes back
/// from its host for some time. It may be about to end, so one that listens is looked at for as long.
pub(crate) async fn is_over(address: &str, my_name: &str) -> bool {
    is_over_within(address, my_name, SILENCE).await
}

async fn is_over_within(address: &str, my_name: &str, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    let mut pause = FIRST_PAUSE;
    let mut listened = false;
    loop {
        match look(address, my_name).await {
            Sight::Refuses => return true,
            Sight::Listens => listened = true,
            Sight::Silent => {}
        }
        if Instant::now() + pause >= end {
            return !listened;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// One that waits for its turn looks after the one that has it.
pub(super) struct HolderWatch {
    token: String,
    since: Instant,
    looked: Instant,
}

impl HolderWatch {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            token: String::new(),
            since: now,
            looked: now,
        }
    }

    /// Somebody has the turn: for how long by now, if it is time to look.
    fn note(&mut self, token: &str) -> Option<Duration> {
        let now = Instant::now();
        if self.token != token {
            *self = Self {
                token: token.to_owned(),
                since: now,
                looked: now,
            };
        }
        if now - self.looked < BETWEEN_LOOKS {
            return None;
        }
        self.looked = now;
        Some(now - self.since)
    }
}

impl GroupStore {
    /// Gives up the turn of one that is gone (GR-5), if it is time to look. Says whether it has.
    pub(super) async fn release_if_gone(
        &self,
        watch: &mut HolderWatch,
        token: &str,
    ) -> Result<bool, GroupError> {
        let Some(held) = watch.note(token) else {
            return Ok(false);
        };
        let Some((name, change)) = Change::of_token(token) else {
            return Ok(false);
        };
        let sight = match self.last_address_of(name).await? {
            Some(address) => look(&address, &self.place().name).await,
            None => Sight::Refuses,
        };
        let is_gone = match (sight, change) {
            (Sight::Listens, _) => false,
            (Sight::Refuses, Change::Join) => held >= JOINER,
            (Sight::Refuses, Change::Leave | Change::Remove(_)) => true,
            (Sight::Silent, _) => held >= SILENCE,
        };
        if is_gone {
            tracing::info!(worker = %self.place().name, peer = name, token, "a worker that is gone had the turn to change the group");
            self.release(token).await?;
        }
        Ok(is_gone)
    }

    /// Whether a worker that is gone has left anything undone. If it is known where it listened, it is that one that is
    /// meant, and not a later one of its name.
    pub(crate) async fn has_left_undone(
        &self,
        name: &str,
        address: &str,
    ) -> Result<bool, GroupError> {
        if self.last_address_of(name).await?.as_deref() != Some(address) {
            return Ok(false);
        }
        if self.number_of(name).await?.is_some() {
            return Ok(true);
        }
        let holder = self.holder().await?;
        Ok(Change::of_token(&holder).is_some_and(|(its, _)| its == name))
    }

    /// The number of a worker on the list that listened there. While this worker has the turn, nobody else comes under the
    /// name.
    pub(crate) async fn number_on_list(
        &self,
        name: &str,
        address: &str,
    ) -> Result<Option<u16>, GroupError> {
        match self.last_address_of(name).await?.as_deref() == Some(address) {
            true => self.number_of(name).await,
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("uv://{}", listener.local_addr().unwrap());
        (listener, address)
    }

    #[tokio::test]
    async fn a_process_is_over_when_nobody_listens_where_it_did() {
        let (listener, address) = listener().await;
        // It goes while it is being looked for, as a process does that dies.
        let looking = tokio::spawn({
            let address = address.clone();
            async move { is_over(&address, "a").await }
        });
        drop(listener.accept().await.unwrap());
        drop(listener);
        assert!(looking.await.unwrap());
    }

    #[tokio::test]
    async fn a_process_that_listens_is_not_over_nor_one_whose_place_is_not_known() {
        let (_listener, address) = listener().await;
        for address in [&address[..], "uv://no address", ""] {
            let is_over = is_over_within(address, "a", 3 * FIRST_PAUSE).await;
            assert!(!is_over, "{address}");
        }
    }
}
