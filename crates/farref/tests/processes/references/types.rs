//! R8: a reference is only ever read as what it is.

use anyhow::{Context as _, ensure};
use farref::{Error, RRef};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::nothing_is_left;
use crate::functions::{Probe, ProbeRRef as _};
use crate::group;
use crate::{Options, Tests};

pub(crate) fn tests() -> Tests {
    vec![(
        "a_reference_is_not_read_as_one_to_another_type",
        a_reference_is_not_read_as_one_to_another_type,
    )]
}

/// Written as one thing and read as another, as by two builds that disagree.
enum Mislabelled {
    Written(RRef<Probe>),
    Read(RRef<String>),
}

impl Serialize for Mislabelled {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Written(probe) => probe.serialize(serializer),
            Self::Read(text) => text.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Mislabelled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        RRef::deserialize(deserializer).map(Self::Read)
    }
}

#[farref::remote]
async fn take_mislabelled(reference: Mislabelled) -> u64 {
    drop(reference);
    1
}

#[farref::remote]
async fn give_mislabelled(probe: RRef<Probe>) -> Mislabelled {
    Mislabelled::Written(probe)
}

/// R8
fn a_reference_is_not_read_as_one_to_another_type() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let probe = Probe::new_on(&a, 1).remote();
        let written = || Mislabelled::Written(probe.clone());
        let outcomes = [
            take_mislabelled::on(&b, written()).await.err(),
            take_mislabelled::on(&a, written()).await.err(),
            give_mislabelled::on(&b, probe.clone()).await.err(),
        ];
        for error in outcomes {
            let error = error.context("a probe was read as a text")?;
            ensure!(matches!(error, Error::TypeMismatch(_)), "{error:?}");
            let text = error.to_string();
            ensure!(
                text.contains("String"),
                "does not say what was expected: {text}"
            );
            ensure!(text.contains("Probe"), "does not say what there is: {text}");
        }
        ensure!(probe.value().await? == 1);
        drop(probe);
        nothing_is_left(&a).await
    })
}
