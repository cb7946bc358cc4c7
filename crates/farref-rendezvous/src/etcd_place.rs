//! Where an etcd is, and which part of it a group may use: `etcd://host:port/prefix`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::place_text::{ParseRendezvousError, UNLIKE, host_and_port};

/// How long a worker that is not heard of keeps its place, unless the rendezvous says otherwise.
const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// etcd itself allows nothing shorter.
const SHORTEST_TTL: u64 = 2;
const LONGEST_TTL: u64 = 24 * 3600;

const PREFIX: ParseRendezvousError = ParseRendezvousError::because(
    "an etcd needs a prefix for the group's keys, of letters, digits and -_./: \
     (etcd://host:port/prefix)",
);
const HOSTS: ParseRendezvousError = ParseRendezvousError::because(
    "an etcd's hosts are written host:port, with commas in between (etcd://host:port,host:port/prefix)",
);
const USER: ParseRendezvousError =
    ParseRendezvousError::because("there is no user before the @ (etcd://user@host:port/prefix)");
const PASSWORD: ParseRendezvousError = ParseRendezvousError::because(
    "a password must not stand in it, where logs and other processes see it: set FARREF_ETCD_PASSWORD, or \
     name a file (etcd://user@host:port/prefix?password-file=PATH)",
);
const SETTING: ParseRendezvousError = ParseRendezvousError::because(
    "the settings of an etcd are ca, cert, key, password-file and ttl, each with a value \
     (etcds://host:port/prefix?ca=PATH&ttl=10)",
);
const TTL: ParseRendezvousError =
    ParseRendezvousError::because("the ttl of an etcd is a number of seconds from 2 to 86400");
const NO_TLS: ParseRendezvousError = ParseRendezvousError::because(
    "ca, cert and key are for an etcd with TLS: write etcds:// instead of etcd://",
);
const CA: ParseRendezvousError = ParseRendezvousError::because(
    "etcds:// needs the certificate of who signed etcd's (etcds://host:port/prefix?ca=PATH)",
);
const PAIR: ParseRendezvousError =
    ParseRendezvousError::because("cert and key of an etcd belong together: give both, or neither");

/// A prefix in an etcd: `etcd://[user@]host:port[,host:port]/prefix[?settings]`, or `etcds://` with TLS.
///
/// | setting | meaning |
/// | --- | --- |
/// | `ca`, `cert`, `key` | files (PEM): whom to trust, needed with `etcds://`; this worker's own certificate |
/// | `password-file` | a file with the user's password; without it, that is in `FARREF_ETCD_PASSWORD` |
/// | `ttl` | for how many seconds a worker that is not heard of keeps its place: 10, unless told |
///
/// A password does not stand in it: it would be seen in logs and among processes.
///
/// ```
/// use farref_rendezvous::Rendezvous;
///
/// let text = "etcds://farref@etcd0:2379,etcd1:2379/jobs/17?ca=/etc/ca.pem&password-file=/run/secret";
/// let Rendezvous::Etcd(place) = text.parse()? else { panic!() };
/// assert_eq!(place.endpoints[1], ("etcd1".to_owned(), 2379));
/// assert_eq!(place.prefix, "jobs/17");
/// assert_eq!(place.to_string(), text);
/// # Ok::<(), farref_rendezvous::ParseRendezvousError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct EtcdPlace {
    /// Hosts and ports of the cluster's members: one that answers is enough.
    pub endpoints: Vec<(String, u16)>,
    /// What the group's keys start with; a `/` follows.
    pub prefix: String,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// Whom to trust.
    pub ca: Option<PathBuf>,
    /// This worker's certificate.
    pub cert: Option<PathBuf>,
    /// The key of its certificate.
    pub key: Option<PathBuf>,
    /// Who asks, where etcd wants to know.
    pub user: Option<String>,
    /// Where the password is.
    pub password_file: Option<PathBuf>,
    /// How long a worker that is not heard of keeps its place.
    pub ttl: Duration,
}

impl FromStr for EtcdPlace {
    type Err = ParseRendezvousError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (rest, tls) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(UNLIKE),
        };
        let (address, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, prefix) = address.split_once('/').ok_or(PREFIX)?;
        let (user, hosts) = match authority.rsplit_once('@') {
            // A password here would be one in the logs.
            Some((user, _)) if user.contains(':') => return Err(PASSWORD),
            Some(("", _)) => return Err(USER),
            Some((user, hosts)) => (Some(user.to_owned()), hosts),
            None => (None, authority),
        };
        let endpoints = hosts.split(',').map(host_and_port);
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>();
        let endpoints = endpoints.map_err(|_| HOSTS)?;
        let prefix = prefix.trim_matches('/');
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
        if !(1..=255).contains(&prefix.len()) || !prefix.chars().all(allowed) {
            return Err(PREFIX);
        }
        let mut place = Self {
            endpoints,
            prefix: prefix.to_owned(),
            tls,
            ca: None,
            cert: None,
            key: None,
            user,
            password_file: None,
            ttl: DEFAULT_TTL,
        };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').ok_or(SETTING)?;
            if value.is_empty() {
                return Err(SETTING);
            }
            match name {
                "ca" => place.ca = Some(value.into()),
                "cert" => place.cert = Some(value.into()),
                "key" => place.key = Some(value.into()),
                "password-file" => place.password_file = Some(value.into()),
                "ttl" => {
                    let ttl = value.parse().ok();
                    let ttl = ttl.filter(|ttl| (SHORTEST_TTL..=LONGEST_TTL).contains(ttl));
                    place.ttl = Duration::from_secs(ttl.ok_or(TTL)?);
                }
                _ => return Err(SETTING),
            }
        }
        let has_files = place.ca.is_some() || place.cert.is_some() || place.key.is_some();
        // Nobody is to believe that what is not encrypted is.
        match tls {
            false if has_files => Err(NO_TLS),
            true if place.ca.is_none() => Err(CA),
            true if place.cert.is_some() != place.key.is_some() => Err(PAIR),
            _ => Ok(place),
        }
    }
}

impl fmt::Display for EtcdPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "etcds://" } else { "etcd://" })?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        for (index, (host, port)) in self.endpoints.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match host.contains(':') {
                true => write!(f, "{comma}[{host}]:{port}")?,
                false => write!(f, "{comma}{host}:{port}")?,
            }
        }
        write!(f, "/{}", self.prefix)?;
        let files = [
            ("ca", &self.ca),
            ("cert", &self.cert),
            ("key", &self.key),
            ("password-file", &self.password_file),
        ];
        let mut mark = '?';
        for (name, file) in files {
            if let Some(file) = file {
                write!(f, "{mark}{name}={}", file.display())?;
                mark = '&';
            }
        }
        if self.ttl != DEFAULT_TTL {
            write!(f, "{mark}ttl={}", self.ttl.as_secs())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_displayed_parses_to_the_same() {
        for text in [
            "etcd://localhost:2379/farref",
            "etcd://u@[::1]:2379,10.0.0.1:1/jobs/1?password-file=/p&ttl=5",
            "etcds://h:2379/a?ca=/ca.pem&cert=/c.pem&key=/k.pem",
        ] {
            assert_eq!(text.parse::<EtcdPlace>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn whoever_is_wrong_about_an_etcd_is_told_where() {
        for (text, expected) in [
            ("etcd://h:1", "prefix"),
            ("etcd://h:1/", "prefix"),
            ("etcd://h:1/a b", "prefix"),
            ("etcd://h/p", "host:port"),
            ("etcd://h:1,/p", "host:port"),
            ("etcd://u:secret@h:1/p", "password-file"),
            ("etcd://@h:1/p", "user"),
            ("etcd://h:1/p?ttl=1", "from 2 to 86400"),
            ("etcd://h:1/p?ttl=x", "from 2 to 86400"),
            ("etcd://h:1/p?tll=10", "settings"),
            ("etcd://h:1/p?ttl", "settings"),
            ("etcd://h:1/p?ca=/ca.pem", "etcds://"),
            ("etcds://h:1/p", "ca=PATH"),
            ("etcds://h:1/p?ca=/ca.pem&cert=/c.pem", "cert and key"),
        ] {
            let error = text.parse::<EtcdPlace>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn what_is_open_contradictory_or_secret_is_refused() {
        for text in [
            "etcd://h:1",
            "etcd://h:1/",
            "etcd://h/p",
            "etcd://h:1,/p",
            "etcd://u:secret@h:1/p",
            "etcd://@h:1/p",
            "etcd://h:1/p?ttl=1",
            "etcd://h:1/p?ttl=x",
            "etcd://h:1/p?unknown=1",
            "etcd://h:1/p?ca=/ca.pem",
            "etcds://h:1/p",
            "etcds://h:1/p?ca=/ca.pem&cert=/c.pem",
            "etcd://h:1/a b",
        ] {
            assert!(text.parse::<EtcdPlace>().is_err(), "{text}");
        }
    }
}
