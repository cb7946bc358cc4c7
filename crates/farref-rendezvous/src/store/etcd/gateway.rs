//! Requests to etcd and what its answers mean: any member of the cluster will do.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::http::{Answer, Connection};
use super::transaction::{Done, Transaction, decoded, encoded, end_of_prefix, number};
use crate::etcd_place::EtcdPlace;
use crate::store::error::StoreError;

/// How long a request may take for which nobody waits on purpose.
pub(super) const QUICK: Duration = Duration::from_secs(10);
/// How long one member of the cluster may take to be reached before the next is tried.
const ATTEMPT: Duration = Duration::from_secs(2);
/// How soon after all have been tried they are tried again.
const PAUSE: Duration = Duration::from_millis(100);

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
    idle: Mutex<Option<Connection>>,
    /// The member of the cluster that has answered last.
    preferred: AtomicUsize,
}

/// Which keys are watched.
pub(super) enum Range {
    Key(String),
    Prefix(String),
}

/// What a watch tells.
pub(super) enum WatchEvent {
    Set(String),
    Deleted,
    /// Some of what was to be told is not known any more.
    Compacted,
}

/// A watch: an answer that goes on.
pub(super) struct Watch<'a> {
    gateway: &'a Gateway,
    connection: Connection,
    answer: Answer,
    read: Vec<u8>,
    events: Vec<WatchEvent>,
}

/// Why a request was not done.
enum Refusal {
    /// By etcd, with a code and words.
    Etcd(i64, String),
    /// On the way: whether it was done is not known.
    Network(io::Error),
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
        let writes = transaction.writes();
        let request = transaction.into_request();
        let answer = self.call("/v3/kv/txn", &request, !writes, end).await?;
        Ok(Done::read(&answer))
    }

    /// Takes a lease.
    pub(super) async fn grant(&self, end: Instant) -> Result<i64, StoreError> {
        let request = json!({ "TTL": self.place.ttl.as_secs().to_string() });
        // One lease too many runs out by itself.
        let answer = self.call("/v3/lease/grant", &request, true, end).await?;
        Ok(number(&answer["ID"]))
    }

    /// Keeps a lease; says whether it was still there.
    pub(super) async fn keep_alive(&self, lease: i64, end: Instant) -> Result<bool, StoreError> {
        let request = json!({ "ID": lease.to_string() });
        let path = "/v3/lease/keepalive";
        let answer = self.call(path, &request, true, end).await?;
        Ok(number(&answer["result"]["TTL"]) > 0)
    }

    /// Gives a lease back, and with it all that was set with it.
    pub(super) async fn revoke(&self, lease: i64, end: Instant) -> Result<(), StoreError> {
        let request = json!({ "ID": lease.to_string() });
        match self.call("/v3/lease/revoke", &request, true, end).await {
            Ok(_) | Err(StoreError::LeaseLost { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Watches keys from a count of changes on.
    pub(super) async fn watch(&self, range: &Range, from: i64) -> Result<Watch<'_>, StoreError> {
        let end = Instant::now() + QUICK;
        let from = from.to_string();
        let create = match range {
            Range::Key(key) => json!({ "key": encoded(key), "start_revision": from }),
            Range::Prefix(prefix) => json!({
                "key": encoded(prefix), "range_end": encoded(&end_of_prefix(prefix)),
                "start_revision": from,
            }),
        };
        let token = self.token(end).await?;
        let mut connection = self.connect(end).await?;
        let body = json!({ "create_request": create }).to_string();
        let answer = connection.post("/v3/watch", token.as_deref(), body.as_bytes());
        let answer = match timeout_at(end, answer).await {
            Ok(answer) => answer.map_err(|source| self.lost(source))?,
            Err(_) => return Err(self.no_answer(QUICK)),
        };
        if answer.status != 200 {
            let body = connection.body(&answer).await.unwrap_or_default();
            let (code, words) = refusal(&body);
            return Err(self.refused(code, words));
        }
        Ok(Watch {
            gateway: self,
            connection,
            answer,
            read: Vec::new(),
            events: Vec::new(),
        })
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
            match self.post(path, token.as_deref(), request, end).await? {
                Ok(answer) => return Ok(answer),
                // Tokens run out.
                Err(Refusal::Etcd(code::UNAUTHENTICATED, _))
                    if token.is_some() && !is_new_token =>
                {
                    *locked(&self.token) = None;
                    is_new_token = true;
                }
                Err(Refusal::Etcd(code::UNAVAILABLE, words))
                    if (again || words.contains("no leader")) && Instant::now() + PAUSE < end =>
                {
                    tracing::debug!(words, "etcd is not ready");
                    self.turn_away();
                    sleep(PAUSE).await;
                }
                Err(Refusal::Network(error)) if again && Instant::now() + PAUSE < end => {
                    tracing::debug!(%error, "etcd is asked again");
                    sleep(PAUSE).await;
                }
                Err(Refusal::Etcd(code, words)) => return Err(self.refused(code, words)),
                Err(Refusal::Network(error)) => return Err(self.lost(error)),
            }
        }
    }

    async fn post(
        &self,
        path: &str,
        token: Option<&str>,
        request: &Value,
        end: Instant,
    ) -> Result<Result<Value, Refusal>, StoreError> {
        let began = Instant::now();
        let idle = locked(&self.idle).take();
        // A connection that is taken out is closed if this future is dropped before the answer.
        let mut connection = match idle.and_then(|mut idle| idle.is_quiet().then_some(idle)) {
            Some(connection) => connection,
            None => self.connect(end).await?,
        };
        let body = request.to_string();
        let exchange = async {
            let answer = connection.post(path, token, body.as_bytes()).await?;
            let body = connection.body(&answer).await?;
            Ok::<_, io::Error>((answer.status, body))
        };
        let (status, body) = match timeout_at(end, exchange).await {
            Err(_) => {
                self.turn_away();
                return Err(self.no_answer(began.elapsed()));
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(self.strange(&error.to_string()));
            }
            Ok(Err(error)) => {
                self.turn_away();
                return Ok(Err(Refusal::Network(error)));
            }
            Ok(Ok(exchanged)) => exchanged,
        };
        *locked(&self.idle) = Some(connection);
        if status != 200 {
            let (code, words) = refusal(&body);
            return Ok(Err(Refusal::Etcd(code, words)));
        }
        match serde_json::from_slice::<Value>(&body) {
            Ok(answer) if answer.get("error").is_some() => {
                let (code, words) = refusal(&body);
                Ok(Err(Refusal::Etcd(code, words)))
            }
            Ok(answer) => Ok(Ok(answer)),
            Err(error) => Err(self.strange(&error.to_string())),
        }
    }

    /// The next request goes to another member of the cluster: this one hangs, or is cut off from the others.
    fn turn_away(&self) {
        drop(locked(&self.idle).take());
        self.preferred.fetch_add(1, Ordering::Relaxed);
    }

    /// A new connection, to whichever member of the cluster can be reached first.
    async fn connect(&self, end: Instant) -> Result<Connection, StoreError> {
        let began = Instant::now();
        let count = self.place.endpoints.len();
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        loop {
            let preferred = self.preferred.load(Ordering::Relaxed) % count.max(1);
            for number in preferred..preferred + count {
                let Some((host, port)) = self.place.endpoints.get(number % count) else {
                    continue;
                };
                let left = end.saturating_duration_since(Instant::now());
                let opening = Connection::open(host, *port, self.tls.as_ref());
                match timeout(ATTEMPT.min(left), opening).await {
                    Ok(Ok(connection)) => {
                        self.preferred.store(number % count, Ordering::Relaxed);
                        return Ok(connection);
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
    async fn token(&self, end: Instant) -> Result<Option<String>, StoreError> {
        let Some(user) = &self.place.user else {
            return Ok(None);
        };
        let known = locked(&self.token).clone();
        if known.is_some() {
            return Ok(known);
        }
        let request = json!({ "name": user, "password": self.password });
        loop {
            match self
                .post("/v3/auth/authenticate", None, &request, end)
                .await?
            {
                Ok(answer) => {
                    let token = answer["token"].as_str().map(str::to_owned);
                    locked(&self.token).clone_from(&token);
                    return Ok(token);
                }
                // It asks nobody for a password.
                Err(Refusal::Etcd(code::FAILED_PRECONDITION, words))
                    if words.contains("not enabled") =>
                {
                    return Ok(None);
                }
                Err(Refusal::Etcd(code::UNAVAILABLE, _) | Refusal::Network(_))
                    if Instant::now() + PAUSE < end =>
                {
                    sleep(PAUSE).await;
                }
                Err(Refusal::Etcd(code, words)) => return Err(self.refused(code, words)),
                Err(Refusal::Network(error)) => return Err(self.lost(error)),
            }
        }
    }

    /// Takes a token that etcd does not know.
    #[cfg(test)]
    pub(super) fn forget_token(&self) {
        *locked(&self.token) = Some("forgotten".to_owned());
    }

    /// What etcd means.
    fn refused(&self, code: i64, words: String) -> StoreError {
        let place = self.place.to_string();
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

    fn lost(&self, source: io::Error) -> StoreError {
        let address = self.place.to_string();
        StoreError::Lost { address, source }
    }

    fn no_answer(&self, waited: Duration) -> StoreError {
        let address = self.place.to_string();
        StoreError::NoAnswer { address, waited }
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

impl Watch<'_> {
    pub(super) async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        loop {
            if let Some(event) = self.events.pop() {
                return Ok(event);
            }
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                self.take(&line)?;
                continue;
            }
            let piece = self.connection.next_piece(&self.answer).await;
            match piece.map_err(|source| self.gateway.lost(source))? {
                Some(piece) => self.read.extend_from_slice(&piece),
                None => {
                    let source = io::ErrorKind::UnexpectedEof.into();
                    return Err(self.gateway.lost(source));
                }
            }
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<(), StoreError> {
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let told: Value = serde_json::from_slice(line)
            .map_err(|error| self.gateway.strange(&error.to_string()))?;
        if told.get("error").is_some() {
            let (code, words) = refusal(line);
            return Err(self.gateway.refused(code, words));
        }
        let told = &told["result"];
        if told["canceled"].as_bool().unwrap_or(false) {
            return match number(&told["compact_revision"]) {
                0 => {
                    let words = told["cancel_reason"]
                        .as_str()
                        .unwrap_or("the watch was ended");
                    let code = match words.contains("permission") {
                        true => code::PERMISSION_DENIED,
                        false => code::UNAVAILABLE,
                    };
                    Err(self.gateway.refused(code, words.to_owned()))
                }
                _ => {
                    self.events.insert(0, WatchEvent::Compacted);
                    Ok(())
                }
            };
        }
        // The first is taken last.
        for event in told["events"].as_array().into_iter().flatten().rev() {
            let is_deleted = event["type"].as_str() == Some("DELETE");
            let event = match is_deleted {
                true => WatchEvent::Deleted,
                false => {
                    let key = decoded(&event["kv"]["key"]);
                    WatchEvent::Set(String::from_utf8(key).unwrap_or_default())
                }
            };
            self.events.push(event);
        }
        Ok(())
    }
}

/// The code and the words of an answer that is an error.
fn refusal(body: &[u8]) -> (i64, String) {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else {
        let words = String::from_utf8_lossy(body.get(..200).unwrap_or(body));
        return (0, words.into_owned());
    };
    // A stream's error is an object, another's stands beside its code.
    let inner = match &answer["error"] {
        inner @ Value::Object(_) => inner,
        _ => &answer,
    };
    let words = inner["message"].as_str();
    let words = words.or_else(|| inner["error"].as_str());
    let code = match number(&inner["grpc_code"]) {
        0 => number(&inner["code"]),
        code => code,
    };
    (code, words.unwrap_or("etcd gives no reason").to_owned())
}

fn password(place: &EtcdPlace) -> Result<Option<String>, StoreError> {
    if place.user.is_none() {
        return Ok(None);
    }
    match &place.password_file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.map_err(|error| setup("password", path, &error.to_string()))?;
            Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
        }
        None => Ok(std::env::var("FARREF_ETCD_PASSWORD").ok()),
    }
}

fn tls_config(place: &EtcdPlace) -> Result<ClientConfig, StoreError> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &place.ca {
        for certificate in certificates("authority's certificate", ca)? {
            let added = roots.add(certificate);
            added.map_err(|error| setup("authority's certificate", ca, &error.to_string()))?;
        }
    }
    let provider = Arc::new(crypto::ring::default_provider());
    let versions =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let wrong = |error: &dyn std::fmt::Display| StoreError::Setup {
        what: "the certificates".to_owned(),
        reason: error.to_string(),
    };
    let config = versions.map_err(|error| wrong(&error))?;
    let config = config.with_root_certificates(roots);
    match (&place.cert, &place.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates("certificate", cert)?;
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| setup("key", key, &error.to_string()))?;
            config
                .with_client_auth_cert(chain, key)
                .map_err(|error| wrong(&error))
        }
        _ => Ok(config.with_no_client_auth()),
    }
}

fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found: Vec<_> = read.map_err(|error| setup(what, path, &error.to_string()))?;
    match found.is_empty() {
        true => Err(setup(what, path, "there is none in it")),
        false => Ok(found),
    }
}

fn setup(what: &str, path: &Path, reason: &str) -> StoreError {
    StoreError::Setup {
        what: format!("the {what} in {}", path.display()),
        reason: reason.to_owned(),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
