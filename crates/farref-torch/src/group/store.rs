//! The keys of a group: who is in it, where its members are, whose turn it is to change it, and whether all
//! are done.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farref::Store;
use tokio::time::Instant;

use super::abandoned::Abandoned;
use super::address::hostname;
use super::devices;
use super::error::GroupError;
use super::listing::{Listing, MAX_IDS};
use crate::deadline::end_of;
use crate::gloo::{Gloo, GlooDialect, MeshConfig};

const MAX_NAME: usize = 127;
/// How long others are waited for that may work for as long as they like.
const NO_END: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long an address is waited for that has been published.
const PUBLISHED: Duration = Duration::from_secs(2);

const KIND: &str = "rpcIsStaticGroup";
/// None of PyTorch's: Rust workers tell each other who is gone.
const LOST: &str = "shutdown/FARREF_LOST";
const LIST: &str = "names/_ALL_WORKER_INFOS";

/// Which worker this is, and of which group.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    /// In a static group also called the rank.
    pub(crate) id: u16,
    /// `None` in a dynamic group.
    pub(crate) world: Option<u16>,
    /// What the launcher put in front of all keys; mostly nothing.
    pub(crate) base: String,
    /// How many times the Python workers have called `init_rpc` before.
    pub(crate) prefix: u32,
    /// How many rounds of shutting down the Python workers have been through before: three for each group,
    /// if no calls were under way.
    pub(crate) rounds_before: u64,
    /// How long others are waited for.
    pub(crate) patience: Duration,
}

/// A worker of the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub(crate) id: u16,
    pub(crate) name: String,
    /// As it is in the store: `uv://ip:port`.
    pub(crate) address: String,
}

/// A group as its store shows it to one of its workers.
#[derive(Clone, Debug)]
pub(crate) struct GroupStore {
    pub(super) store: Arc<dyn Store>,
    pub(super) place: Place,
    pub(super) abandoned: Abandoned,
}

impl GroupStore {
    /// Refuses names and ids that PyTorch would not take.
    pub(crate) fn new(store: Arc<dyn Store>, place: Place) -> Result<Self, GroupError> {
        let name = |why| {
            let name = place.name.clone();
            Err(GroupError::Name { name, why })
        };
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-:".contains(&byte);
        if !(1..=MAX_NAME).contains(&place.name.len()) {
            return name("it must have 1 to 127 letters");
        }
        if !place.name.bytes().all(allowed) {
            return name("PyTorch allows ASCII letters, digits, `_`, `-` and `:`");
        }
        if place.world.is_none() && place.name.contains('-') {
            return name("PyTorch cannot read names with `-` in a dynamic group");
        }
        let within = place.world.is_none_or(|world| place.id < world);
        let fits = |number: u16| u32::from(number) <= MAX_IDS;
        if !within || u32::from(place.id) >= MAX_IDS || !place.world.is_none_or(fits) {
            return Err(GroupError::Id {
                id: place.id,
                world: place.world,
                limit: MAX_IDS,
            });
        }
        let abandoned = Abandoned::default();
        Ok(Self {
            store,
            place,
            abandoned,
        })
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// How long others are waited for.
    pub(crate) fn patience(&self) -> Duration {
        self.place.patience
    }

    /// Meets the others of a static group. `ip` is for Gloo, `address` for RPC.
    ///
    /// The connections are for a barrier, when RPC is up; then they are to be closed.
    pub(crate) async fn enter_static(
        &self,
        dialect: GlooDialect,
        ip: IpAddr,
        address: &str,
    ) -> Result<(Vec<Member>, Gloo), GroupError> {
        let end = end_of(self.place.patience);
        let (id, world) = (self.place.id, self.place.world.unwrap_or(1));
        let config = MeshConfig {
            store: &*self.store,
            keys: self.key("0/"),
            rank: id,
            world,
            dialect,
            ip,
            hostname: hostname(),
            patience: self.place.patience,
        };
        let mut gloo = config.connect().await?;
        let told = devices::write(&self.place.name);
        let told = gloo.all_gather_objects(&told, self.place.patience).await?;
        let mut names = Vec::with_capacity(told.len());
        for (rank, told) in told.iter().enumerate() {
            let told = devices::read(told, &self.place.name);
            let told = told.map_err(|error| GroupError::Corrupt {
                what: format!("what rank {rank} told about itself"),
                reason: error.to_string(),
            })?;
            if !told.wants.is_empty() {
                return Err(GroupError::Devices {
                    name: told.name,
                    devices: told.wants.join(", "),
                });
            }
            names.push(told.name);
        }
        self.agree_on_kind("true").await?;
        self.set(&format!("names/{id}"), self.place.name.as_bytes())
            .await?;
        let mut ids = BTreeMap::new();
        for (rank, told) in (0u16..).zip(names) {
            let key = format!("names/{rank}");
            let name = match rank == id {
                true => self.place.name.clone(),
                false => self.get(&key, end).await?,
            };
            if name != told {
                return Err(
                    self.corrupt(&key, format!("it is {name:?}, and rank {rank} is {told:?}"))
                );
            }
            if let Some(other) = ids.insert(name.clone(), rank) {
                let (mine, other) = if rank == id {
                    (rank, other)
                } else {
                    (other, rank)
                };
                return Err(GroupError::NameTaken { name, mine, other });
            }
        }
        let members = self.exchange_addresses(ids, address, end).await?;
        Ok((members, gloo))
    }

    /// Enters the list of a dynamic group, in this worker's turn to join.
    ///
    /// Before the turn is given up, the others have to be told by RPC. If this fails, [`super::Turn`] takes it back.
    pub(crate) async fn enter_dynamic(&self, address: &str) -> Result<Vec<Member>, GroupError> {
        let end = end_of(self.place.patience);
        let Place { name, id, .. } = &self.place;
        self.agree_on_kind("false").await?;
        let key = format!("names/{id}");
        let holder = self.compare_set(&key, b"", name.as_bytes()).await?;
        if holder != *name {
            return Err(GroupError::IdTaken {
                id: *id,
                other: holder,
            });
        }
        self.set(&key, name.as_bytes()).await?;
        let mut list = self.list().await?.unwrap_or_default();
        if let Some((_, other)) = list.0.iter().find(|(other, _)| other == name) {
            return Err(GroupError::NameTaken {
                name: name.clone(),
                mine: *id,
                other: *other,
            });
        }
        list.0.push((name.clone(), *id));
        self.abandoned.listed.store(true, Ordering::Release);
        self.set(LIST, list.text().as_bytes()).await?;
        let ids = list.0.into_iter().collect();
        let members = self.exchange_addresses(ids, address, end).await;
        if members.is_err() {
            // Nobody is to call a worker that has not come (GR-2). The first error is the one to tell.
            let _ = self.leave_dynamic().await;
        }
        members
    }

    /// Leaves the list of a dynamic group, in this worker's turn to leave. The others have been told by RPC.
    pub(crate) async fn leave_dynamic(&self) -> Result<(), GroupError> {
        let mut list = self.list().await?.unwrap_or_default();
        let own = (self.place.name.clone(), self.place.id);
        list.0.retain(|member| *member != own);
        self.set(LIST, list.text().as_bytes()).await?;
        self.abandoned.listed.store(false, Ordering::Release);
        Ok(())
    }

    /// Takes another worker off the list of a dynamic group, in this worker's turn to remove it.
    pub(crate) async fn strike(&self, name: &str, id: u16) -> Result<(), GroupError> {
        let mut list = self.list().await?.unwrap_or_default();
        list.0.retain(|(other, its)| other != name || *its != id);
        self.set(LIST, list.text().as_bytes()).await
    }

    /// The number of a worker on the list of a dynamic group.
    pub(super) async fn number_of(&self, name: &str) -> Result<Option<u16>, GroupError> {
        let list = self.list().await?.unwrap_or_default();
        let listed = list.0.iter().find(|(other, _)| other == name);
        Ok(listed.map(|(_, id)| *id))
    }

    /// Where the last worker of that name has said that it listens.
    pub(crate) async fn last_address_of(&self, name: &str) -> Result<Option<String>, GroupError> {
        self.text_of(&format!("addrs/{name}"), "reading where a worker was")
            .await
    }

    /// Where a worker listens, as it has published it, which it does before it calls anybody.
    pub(crate) async fn address_of(&self, name: &str) -> Result<String, GroupError> {
        let key = format!("addrs/{name}");
        let address = self.get(&key, end_of(PUBLISHED)).await?;
        match address.starts_with("uv://") {
            true => Ok(address),
            false => Err(self.corrupt(&key, format!("{address:?} is no address of uv"))),
        }
    }

    /// One round of shutting a static group down: how many calls all workers together have under way. Rounds
    /// are counted from 1 in each group.
    pub(crate) async fn round(&self, number: u64, active_calls: u64) -> Result<u64, GroupError> {
        let id = self.place.rounds_before + number;
        let world = i64::from(self.place.world.unwrap_or(1));
        let key = |what: &str| shutdown_key(what, id);
        let active = i64::try_from(active_calls).unwrap_or(i64::MAX);
        self.add(&key("ACTIVE_CALLS"), active).await?;
        let count = self.add(&key("PROCESS_COUNT"), 1).await?;
        if count > world {
            let reason = format!("{count} workers have come to a round of {world}");
            return Err(self.corrupt(&key("PROCESS_COUNT"), reason));
        }
        let ready = key("READY");
        if count == world {
            self.set(&ready, b"").await?;
        }
        // As long as it takes: some of the others still work.
        self.store
            .wait(&[self.key(&ready)], NO_END)
            .await
            .map_err(GroupError::store("waiting for the others to shut down"))?;
        let active = key("ACTIVE_CALLS");
        let sum = self.get(&active, end_of(self.place.patience)).await?;
        sum.parse()
            .map_err(|_| self.corrupt(&active, format!("{sum:?} is no number of calls")))
    }

    /// Whether all have come to a round.
    pub(crate) async fn is_complete(&self, number: u64) -> Result<bool, GroupError> {
        let ready = shutdown_key("READY", self.place.rounds_before + number);
        let ready = self.store.try_get(&self.key(&ready)).await;
        let ready = ready.map_err(GroupError::store("looking whether all shut down"))?;
        Ok(ready.is_some())
    }

    /// Says which member of a static group is gone, and returns whom the first has named who said so.
    pub(crate) async fn first_lost(&self, name: &str) -> Result<String, GroupError> {
        self.compare_set(LOST, b"", name.as_bytes()).await
    }

    async fn agree_on_kind(&self, mine: &str) -> Result<(), GroupError> {
        let group = self.compare_set(KIND, b"", mine.as_bytes()).await?;
        if group == mine {
            return Ok(());
        }
        let kind = |text: &str| match text {
            "true" => "static",
            _ => "dynamic",
        };
        Err(match &group[..] {
            "true" | "false" => GroupError::Kind {
                mine: kind(mine),
                group: kind(&group).to_owned(),
            },
            other => self.corrupt(KIND, format!("{other:?} is neither true nor false")),
        })
    }

    /// Publishes this worker's address, and reads all others'.
    async fn exchange_addresses(
        &self,
        ids: BTreeMap<String, u16>,
        address: &str,
        end: Instant,
    ) -> Result<Vec<Member>, GroupError> {
        let own = &self.place.name;
        self.set(&format!("addrs/{own}"), address.as_bytes())
            .await?;
        let mut members = Vec::with_capacity(ids.len());
        for (name, id) in ids {
            let key = format!("addrs/{name}");
            let address = self.get(&key, end).await?;
            if !address.starts_with("uv://") {
                return Err(self.corrupt(&key, format!("{address:?} is no address of uv")));
            }
            members.push(Member { id, name, address });
        }
        members.sort_by_key(|member| member.id);
        Ok(members)
    }

    pub(super) async fn list(&self) -> Result<Option<Listing>, GroupError> {
        let got = self.store.try_get(&self.key(LIST)).await;
        let got = got.map_err(GroupError::store("reading who is in the group"))?;
        got.map(|text| Listing::parse(&text))
            .transpose()
            .map_err(|reason| self.corrupt(LIST, reason))
    }

    pub(super) fn key(&self, key: &str) -> String {
        let Place { base, prefix, .. } = &self.place;
        format!("{base}rpc_prefix_{prefix}/{key}")
    }

    pub(super) fn corrupt(&self, key: &str, reason: String) -> GroupError {
        let what = format!("`{}` in the store", self.key(key));
        GroupError::Corrupt { what, reason }
    }

    pub(super) fn text(&self, key: &str, value: &[u8]) -> Result<String, GroupError> {
        let text = String::from_utf8(value.to_vec());
        text.map_err(|_| self.corrupt(key, "it is no text".to_owned()))
    }

    /// What a key is now, if it is there.
    pub(super) async fn text_of(
        &self,
        key: &str,
        doing: &str,
    ) -> Result<Option<String>, GroupError> {
        let got = self.store.try_get(&self.key(key)).await;
        let got = got.map_err(GroupError::store(doing))?;
        got.map(|value| self.text(key, &value)).transpose()
    }

    pub(super) async fn set(&self, key: &str, value: &[u8]) -> Result<(), GroupError> {
        let set = self.store.set(&self.key(key), value).await;
        set.map_err(GroupError::store(format!("writing `{key}`")))
    }

    pub(super) async fn get(&self, key: &str, end: Instant) -> Result<String, GroupError> {
        let left = end.saturating_duration_since(Instant::now());
        let got = self.store.get(&self.key(key), left).await;
        let value = got.map_err(GroupError::store(format!("waiting for `{key}`")))?;
        self.text(key, &value)
    }

    pub(super) async fn add(&self, key: &str, delta: i64) -> Result<i64, GroupError> {
        let sum = self.store.add(&self.key(key), delta).await;
        sum.map_err(GroupError::store(format!("adding to `{key}`")))
    }

    pub(super) async fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<String, GroupError> {
        let key_in_store = self.key(key);
        let value = self.store.compare_set(&key_in_store, expected, desired);
        let value = value.await;
        let value = value.map_err(GroupError::store(format!("writing `{key}`")))?;
        self.text(key, &value)
    }
}

/// A key of a round of shutting down.
fn shutdown_key(what: &str, round: u64) -> String {
    format!("shutdown/{what}_ID_{round}")
}
