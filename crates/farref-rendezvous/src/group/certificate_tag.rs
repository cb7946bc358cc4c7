//! What a card says of a worker's certificate, and whether two workers can talk with theirs.

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

/// The most authorities of either kind that a card names. Whoever has more names none.
pub(super) const MAX_AUTHORITIES: usize = 8;

/// Of which authorities a worker's certificate is, and of which it takes others' certificates: as much as it takes to notice
/// that two workers cannot talk.
///
/// Certificates are no secret. What is not said here shows when the workers connect.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CertificateTag {
    /// Those that a worker's certificate may be traced back to; none if that cannot be said.
    signed_by: Vec<u32>,
    /// Those whose certificates it takes; none if that cannot be said.
    takes: Vec<u32>,
}

/// Why two workers cannot talk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CertificateConflict {
    /// One has a certificate, and the other has none.
    Missing,
    /// One does not take certificates of the other's authority.
    Authority,
}

impl CertificateTag {
    /// Of the public keys of these authorities.
    pub fn new<K: AsRef<[u8]>>(
        signed_by: impl IntoIterator<Item = K>,
        takes: impl IntoIterator<Item = K>,
    ) -> Self {
        Self {
            signed_by: tags(signed_by),
            takes: tags(takes),
        }
    }

    /// Whether it is not larger than a card may have it.
    pub(super) fn fits(&self) -> bool {
        [&self.signed_by, &self.takes]
            .iter()
            .all(|tags| tags.len() <= MAX_AUTHORITIES)
    }

    /// Whether all that is known speaks against this one's certificate being taken by the other.
    fn is_strange_to(&self, other: &Self) -> bool {
        let is_known = |tag| other.takes.contains(tag);
        let can_be_said = !self.signed_by.is_empty() && !other.takes.is_empty();
        can_be_said && !self.signed_by.iter().any(is_known)
    }

    /// Why workers with these certificates, or without one, cannot talk over TCP.
    pub fn conflict(one: Option<&Self>, other: Option<&Self>) -> Option<CertificateConflict> {
        match (one, other) {
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => Some(CertificateConflict::Missing),
            (Some(one), Some(other)) => (one.is_strange_to(other) || other.is_strange_to(one))
                .then_some(CertificateConflict::Authority),
        }
    }
}

impl CertificateConflict {
    /// In words for errors.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Self::Missing => "some have a certificate and some have none",
            Self::Authority => "their certificates are not of one authority",
        }
    }
}

fn tags<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Vec<u32> {
    let tag = |key: K| {
        let digest = digest(&SHA256, key.as_ref());
        let first = digest.as_ref().first_chunk();
        first.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    let mut tags: Vec<u32> = keys.into_iter().map(tag).collect();
    tags.sort_unstable();
    tags.dedup();
    if tags.len() > MAX_AUTHORITIES {
        tags.clear();
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(signed_by: &[&str], takes: &[&str]) -> CertificateTag {
        CertificateTag::new(signed_by, takes)
    }

    fn between(one: &CertificateTag, other: &CertificateTag) -> Option<CertificateConflict> {
        let conflict = CertificateTag::conflict(Some(one), Some(other));
        assert_eq!(CertificateTag::conflict(Some(other), Some(one)), conflict);
        conflict
    }

    #[test]
    fn workers_of_different_authorities_cannot_talk_unless_both_take_both() {
        let [old, new] = [tag(&["old"], &["old"]), tag(&["new"], &["new"])];
        assert_eq!(between(&old, &old), None);
        assert_eq!(between(&old, &new), Some(CertificateConflict::Authority));
        // On the way from one to the other.
        let both = tag(&["old"], &["old", "new"]);
        assert_eq!(between(&old, &both), None);
        assert_eq!(between(&new, &both), Some(CertificateConflict::Authority));
        assert_eq!(between(&tag(&["new"], &["old", "new"]), &both), None);
        // With one in between that some take for an authority.
        let chain = tag(&["old", "between"], &["old"]);
        let partly = tag(&["old", "between"], &["between"]);
        assert_eq!(between(&chain, &partly), None);
    }

    #[test]
    fn what_cannot_be_said_of_a_certificate_is_no_conflict() {
        let new = tag(&["new"], &["new"]);
        let many: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(between(&tag(&[], &many), &new), None);
        assert_eq!(between(&tag(&[], &[]), &new), None);
        assert!(tag(&many, &many).fits());
    }

    #[test]
    fn a_certificate_and_none_do_not_go_together() {
        let some = tag(&[], &[]);
        let missing = Some(CertificateConflict::Missing);
        assert_eq!(CertificateTag::conflict(Some(&some), None), missing);
        assert_eq!(CertificateTag::conflict(None, Some(&some)), missing);
        assert_eq!(CertificateTag::conflict(None, None), None);
    }
}
