//! What the texts that say where a group meets have in common: hosts and ports, passwords, and what is said of a wrong one.

/// The text is not a rendezvous. Says what one looks like.
///
/// ```
/// use farref_rendezvous::{ParseRendezvousError, Rendezvous};
///
/// for text in ["localhost:29500", "tcp://localhost", "file://relative/path"] {
///     let error: ParseRendezvousError = text.parse::<Rendezvous>().unwrap_err();
///     assert_eq!(error.to_string(), "expected tcp://host:port, file:///path or etcd://host:port/prefix");
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct ParseRendezvousError {
    reason: &'static str,
}

impl ParseRendezvousError {
    /// What is wrong. It repeats nothing of the text, which may have a password in it.
    pub(crate) const fn because(reason: &'static str) -> Self {
        Self { reason }
    }
}

/// The text looks like no rendezvous at all.
pub(crate) const UNLIKE: ParseRendezvousError = ParseRendezvousError::because(
    "expected tcp://host:port, file:///path or etcd://host:port/prefix",
);

/// The same text for errors and logs: what looks like a password in it is left out.
pub fn without_password(text: &str) -> String {
    let start = text.find("://").map_or(0, |at| at + 3);
    let Some(end) = text.rfind('@').filter(|end| *end >= start) else {
        return text.to_owned();
    };
    let (Some(before), Some(user), Some(after)) =
        (text.get(..start), text.get(start..end), text.get(end..))
    else {
        return text.to_owned();
    };
    match user.split_once(':') {
        Some((user, _)) => format!("{before}{user}:***{after}"),
        None => text.to_owned(),
    }
}

/// Reads `host:port`, or `[address]:port`.
pub(crate) fn host_and_port(text: &str) -> Result<(String, u16), ParseRendezvousError> {
    let (host, port) = text.rsplit_once(':').ok_or(UNLIKE)?;
    let host = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.strip_suffix(']').ok_or(UNLIKE)?,
        // An IPv6 address without brackets leaves open where the port begins.
        None if host.contains(':') => return Err(UNLIKE),
        None => host,
    };
    let port = port.parse().map_err(|_| UNLIKE)?;
    match is_host(host) && port != 0 {
        true => Ok((host.to_owned(), port)),
        false => Err(UNLIKE),
    }
}

/// Whether the text can be a host's name or address: enough to catch a URL or a list in its place.
pub(crate) fn is_host(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
    (1..=253).contains(&text.len()) && text.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_left_out() {
        for (text, shown) in [
            ("etcd://bob:pw@h:1/x", "etcd://bob:***@h:1/x"),
            ("etcd://bob:p@:/w@h:1/x", "etcd://bob:***@h:1/x"),
            ("bob:pw@h", "bob:***@h"),
            ("etcd://bob@h:1/x", "etcd://bob@h:1/x"),
            ("tcp://h:1", "tcp://h:1"),
            ("@", "@"),
        ] {
            assert_eq!(without_password(text), shown);
        }
    }
}
