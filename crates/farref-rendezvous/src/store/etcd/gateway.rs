//! Requests to etcd and what its answers mean: any member of the cluster will do.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::rustls::ClientConfig;

use super::credentials::{password, tls_config};
use super::http::Connection;
use super::transaction::{Done, Transaction, number};
use crate::etcd_place::EtcdPlace;
use crate::store::error::StoreError;

/// How long a request may take for which nobody waits on purpose.
pub(super) const QUICK: Duration = Duration::from_secs(10);
/// How long one member of the cluster may take to answer before the next is asked; twice as long the second time, and so
/// on, because all of them may be slow.
pub(super) const ANSWER: Duration = Duration::from_secs(2);
/// How long one member of the cluster may take to be reached before the next is tried.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How soon after all have been tried they are tried again.
const PAUSE: Duration = Duration::from_millis(100);
/// How much is told of what etcd says, in characters.
const MAX_WORDS: usize = 200;

/// Codes of gRPC, which etcd's gateway hands on.
mod code {
    pub(super) const INVALID_ARGUMENT: i64 = 3;
    pub(super) const NOT_FOUND: i64 = 5;
    pub(super) const PERMISSION_DENIED: i64 = 7;
    pub(super) const FAILED_PRECONDITION: i64 = 9;
    pub(super) const UNAVAILABLE: i64 = 14;
    pub(super) const UNAUTHENTICATED: i64 = 16;
}

/// The way to an etcd.
pub(super) struct Gateway {
    place: EtcdPlace,
    tls: Option<Arc<ClientConfig>>,
    password: Option<String>,
    token: Mutex<Option<String>>,
    /// A connection that nobody uses just now.
    idle: Mutex<Option<Way>>,
    /// The member of the cluster that is asked first: which has answered last.
    preferred: AtomicUsize,
}

/// A connection to one member of the cluster.
pub(super) struct Way {
    pub(super) member: usize,
    pub(super) connection: Connection,
}

/// Why a request was not done.
pub(super) enum Refusal {
    /// By etcd, with a code and words.
    Etcd(i64, String),
    /// On the way: whether it was done is not known.
    Network(io::Error),
    /// Nothing was heard for so long: whether it was done is not known.
    Silence(Duration),
}

impl Refusal {
    /// What an answer says that is an error.
    pub(super) fn read(body: &[u8]) -> Self {
        let Ok(answer) = serde_json::from_slice::<Value>(body) else {
            return Self::Etcd(0, words(&String::from_utf8_lossy(body)));
        };
        // A stream's error is an object, another's stands beside its code.
        let inner = match &answer["error"] {
            inner @ Value::Object(_) => inner,
            _ => &answer,
        };
        let told = inner["message"].as_str();
        let told = told.or_else(|| inner["error"].as_str());
        let code = match number(&inner["grpc_code"]) {
            0 => number(&inner["code"]),
            code => code,
        };
        Self::Etcd(code, words(told.unwrap_or("etcd gives no reason")))
    }

    /// Why etcd has ended a watch, in its words.
    pub(super) fn of_watch(told: &str) -> Self {
        let code = match told.contains("permission") {
            true => code::PERMISSION_DENIED,
            false => code::UNAVAILABLE,
        };
        Self::Etcd(code, words(told))
    }

    /// Whether the token is not good any more: it has run out, or users have changed since.
    pub(super) fn is_of_old_token(&self) -> bool {
        match self {
            Self::Etcd(code::UNAUTHENTICATED, _) => true,
            Self::Etcd(code::INVALID_ARGUMENT, words) => {
                words.contains("revision of auth store is old")
            }
            _ => false,
        }
    }

    /// Whether another member of the cluster may answer.
    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Etcd(code, _) => *code == code::UNAVAILABLE,
            Self::Network(_) | Self::Silence(_) => true,
        }
    }

    /// Whether the request has certainly not been done.
    fn is_undone(&self) -> bool {
        matches!(self, Self::Etcd(code::UNAVAILABLE, words) if words.contains("no leader"))
    }
}

impl Gateway {
    pub(super) fn new(place: &EtcdPlace) -> Result<Self, StoreError> {
        let tls = match place.tls {
            true => Some(Arc::new(tls_config(place)?)),
            false => None,
        };
        Ok(Self {
            place: place.clone(),
            tls,
            password: password(place)?,
            token: Mutex::default(),
            idle: Mutex::default(),
            // Not all workers ask the same member: they would lose their leases together.
            preferred: AtomicUsize::new(RandomState::new().hash_one(()) as usize % 1024),
        })
    }

    pub(super) fn place(&self) -> &EtcdPlace {
        &self.place
    }

    pub(super) async fn transact(
        &self,
        transaction: Transaction,
        end: Instant,
    ) -> Result<Done, StoreError> {
        let again = !transaction.is_once();
        let request = transaction.into_request();
        let answer = self.call("/v3/kv/txn", &request, again, end).await?;
        Done::read(&answer).map_err(|reason| self.strange(reason))
    }

    /// Takes a lease.
    pub(super) async fn grant(&self, end: Instant) -> Result<i64, StoreError> {
        let request = json!({ "TTL": self.place.ttl.as_secs().to_string() });
        // One lease too many runs out by itself.
        let answer = self.call("/v3/lease/grant", &request, true, end).await?;
        match number(&answer["ID"]) {
            // Which means no lease, wherever one is given.
            0 => Err(self.strange("its lease has no number")),
            lease => Ok(lease),
        }
    }

    /// Keeps a lease; says whether it was still there.
    pub(super) async fn keep_alive(&self, lease: i64, end: Instant) -> Result<bool, StoreError> {
        let request = json!({ "ID": lease.to_string() });
        let path = "/v3/lease/keepalive";
        let answer = self.call(path, &request, true, end).await?;
        match &answer["result"] {
            Value::Null => Err(self.strange("it does not say what became of a lease")),
            kept => Ok(number(&kept["TTL"]) > 0),
        }
    }

    /// Gives a lease back, and with it all that was set with it.
    pub(super) async fn revoke(&self, lease: i64, end: Instant) -> Result<(), StoreError> {
        let request = json!({ "ID": lease.to_string() });
        match self.call("/v3/lease/revoke", &request, true, end).await {
            Ok(_) | Err(StoreError::LeaseLost { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// One request. `again` says that it may be made twice.
    pub(super) async fn call(
        &self,
        path: &str,
        request: &Value,
        again: bool,
        end: Instant,
    ) -> Result<Value, StoreError> {
        let mut is_new_token = false;
        loop {
            let token = self.token(end).await?;
            match self
                .ask(path, token.as_deref(), request, again, end)
                .await?
            {
                Ok(answer) => return Ok(answer),
                Err(refusal) if token.is_some() && !is_new_token && refusal.is_of_old_token() => {
                    self.forget(token.as_deref());
                    is_new_token = true;
                }
                Err(refusal) => return Err(self.refused(refusal)),
            }
        }
    }

    /// One request to whichever member of the cluster answers it.
    async fn ask(
        &self,
        path: &str,
        token: Option<&str>,
        request: &Value,
        again: bool,
        end: Instant,
    ) -> Result<Result<Value, Refusal>, StoreError> {
        let left = end.saturating_duration_since(Instant::now());
        // Where time is short there is some left for another member.
        let mut limit = if again { ANSWER.min(left / 2) } else { QUICK };
        loop {
            let refusal = match self.post(path, token, request, limit, end).await? {
                Ok(answer) => return Ok(Ok(answer)),
                Err(refusal) => refusal,
            };
            let may_help = again && refusal.is_passing() || refusal.is_undone();
            if !may_help || Instant::now() + PAUSE >= end {
                return Ok(Err(refusal));
            }
            tracing::debug!(path, error = %self.refused(refusal), "etcd is asked again");
            sleep(PAUSE).await;
            limit = limit.saturating_mul(2);
        }
    }

    /// One request to one member of the cluster, which has so long for its answer.
    async fn post(
        &self,
        path: &str,
        token: Option<&str>,
        request: &Value,
        limit: Duration,
        end: Instant,
    ) -> Result<Result<Value, Refusal>, StoreError> {
        let idle = locked(&self.idle).take();
        // A connection that is taken out is closed if this future is dropped before the answer.
        let mut way = match idle.and_then(|mut idle| idle.connection.is_quiet().then_some(idle)) {
            Some(way) => way,
            None => self.connect(end).await?,
        };
        let (member, body) = (way.member, request.to_string());
        let exchange = async {
            let answer = way.connection.post(path, token, body.as_bytes()).await?;
            let body = way.connection.body(&answer).await?;
            Ok::<_, io::Error>((answer.status, body))
        };
        let limit = limit.min(end.saturating_duration_since(Instant::now()));
        let (status, body) = match timeout(limit, exchange).await {
            Err(_) => {
                self.turn_away(member);
                return Ok(Err(Refusal::Silence(limit)));
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(self.strange(&error.to_string()));
            }
            Ok(Err(error)) => {
                self.turn_away(member);
                return Ok(Err(Refusal::Network(error)));
            }
            Ok(Ok(exchanged)) => exchanged,
        };
        let answer = match serde_json::from_slice::<Value>(&body) {
            Ok(answer) if status == 200 && answer.get("error").is_none() => answer,
            Err(error) if status == 200 => return Err(self.strange(&error.to_string())),
            _ => {
                let refusal = Refusal::read(&body);
                match refusal.is_passing() {
                    true => self.turn_away(member),
                    false => *locked(&self.idle) = Some(way),
                }
                return Ok(Err(refusal));
            }
        };
        *locked(&self.idle) = Some(way);
        Ok(Ok(answer))
    }

    /// The next request goes to another member of the cluster than this one, which hangs, or is cut off from the others.
    /// Several may find that out at the same time.
    pub(super) fn turn_away(&self, member: usize) {
        locked(&self.idle).take_if(|idle| idle.member == member);
        let next = |preferred: usize| {
            (self.endpoint(preferred).0 == member).then_some(member.wrapping_add(1))
        };
        let _ = self
            .preferred
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// The member with this number, of which there are as many as one likes.
    fn endpoint(&self, number: usize) -> (usize, Option<&(String, u16)>) {
        let member = number % self.place.endpoints.len().max(1);
        (member, self.place.endpoints.get(member))
    }

    /// A new connection, to whichever member of the cluster can be reached first.
    pub(super) async fn connect(&self, end: Instant) -> Result<Way, StoreError> {
        let began = Instant::now();
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        loop {
            let preferred = self.endpoint(self.preferred.load(Ordering::Relaxed)).0;
            for number in preferred..preferred + self.place.endpoints.len() {
                let (member, Some((host, port))) = self.endpoint(number) else {
                    continue;
                };
                let left = end.saturating_duration_since(Instant::now());
                let opening = Connection::open(host, *port, self.tls.as_ref());
                match timeout(ATTEMPT.min(left), opening).await {
                    Ok(Ok(connection)) => {
                        self.preferred.store(member, Ordering::Relaxed);
                        return Ok(Way { member, connection });
                    }
                    // No certificate gets better by waiting.
                    Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                        return Err(self.strange(&error.to_string()));
                    }
                    Ok(Err(error)) => last = error,
                    Err(_) => {}
                }
            }
            if Instant::now() + PAUSE >= end {
                return Err(StoreError::NoEtcd {
                    place: self.place.to_string(),
                    waited: began.elapsed(),
                    source: last,
                });
            }
            sleep(PAUSE).await;
        }
    }

    /// What a request says of its user, if it has one.
    pub(super) async fn token(&self, end: Instant) -> Result<Option<String>, StoreError> {
        let Some(user) = &self.place.user else {
            return Ok(None);
        };
        let known = locked(&self.token).clone();
        if known.is_some() {
            return Ok(known);
        }
        let request = json!({ "name": user, "password": self.password });
        match self
            .ask("/v3/auth/authenticate", None, &request, true, end)
            .await?
        {
            Ok(answer) => {
                let token = answer["token"].as_str().map(str::to_owned);
                locked(&self.token).clone_from(&token);
                Ok(token)
            }
            // It asks nobody for a password.
            Err(Refusal::Etcd(code::FAILED_PRECONDITION, words))
                if words.contains("not enabled") =>
            {
                Ok(None)
            }
            Err(refusal) => Err(self.refused(refusal)),
        }
    }

    /// This token is not good any more.
    pub(super) fn forget(&self, token: Option<&str>) {
        locked(&self.token).take_if(|known| Some(known.as_str()) == token);
    }

    /// The member that is asked first.
    #[cfg(test)]
    pub(super) fn preferred(&self) -> usize {
        self.endpoint(self.preferred.load(Ordering::Relaxed)).0
    }

    /// Takes a token that etcd does not know.
    #[cfg(test)]
    pub(super) fn spoil_token(&self) {
        *locked(&self.token) = Some("spoilt".to_owned());
    }

    /// What a refusal means.
    pub(super) fn refused(&self, refusal: Refusal) -> StoreError {
        let place = self.place.to_string();
        let (code, words) = match refusal {
            Refusal::Etcd(code, words) => (code, words),
            Refusal::Network(source) => {
                let address = place;
                return StoreError::Lost { address, source };
            }
            Refusal::Silence(waited) => {
                let address = place;
                return StoreError::NoAnswer { address, waited };
            }
        };
        let denied = |hint| StoreError::Denied {
            place: self.place.to_string(),
            reason: words.clone(),
            hint,
        };
        match code {
            code::PERMISSION_DENIED => {
                denied("grant the user's role readwrite on all keys with the prefix and a `/`")
            }
            code::UNAUTHENTICATED => denied(PASSWORD_HINT),
            code::INVALID_ARGUMENT if words.contains("user") || words.contains("auth") => {
                denied(PASSWORD_HINT)
            }
            code::NOT_FOUND if words.contains("lease") => StoreError::LeaseLost { place },
            code::UNAVAILABLE => StoreError::Lost {
                address: place,
                source: io::Error::other(words),
            },
            _ => self.strange(&words),
        }
    }

    pub(super) fn strange(&self, reason: &str) -> StoreError {
        StoreError::NotEtcd {
            place: self.place.to_string(),
            reason: reason.to_owned(),
        }
    }
}

const PASSWORD_HINT: &str = "name the user in the rendezvous (etcd://user@host:port/prefix), and give the password in a \
    file (?password-file=) or in FARREF_ETCD_PASSWORD";

/// What etcd says, as it can be told: not too long, and in one line.
fn words(told: &str) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    told.chars().take(MAX_WORDS).map(visible).collect()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
