//! R6, F4: a value whose constructor failed fails every use of its references, as what the failure was,
//! and names the constructor and the worker that ran it.

use std::time::Duration;

use anyhow::Result;
use farref::testing::Cluster;
use farref::{Error, RRef};

struct Vase;

#[farref::remote]
impl Vase {
    /// Takes longer than anybody waits.
    pub(crate) async fn shape() -> Self {
        std::future::pending().await
    }

    pub(crate) async fn drop_on_the_floor() -> Result<Self, String> {
        Err("it broke".to_owned())
    }

    pub(crate) async fn burst() -> Self {
        panic!("too hot")
    }

    pub(crate) async fn copy(&self) -> Self {
        Self
    }

    pub(crate) async fn look(&self) -> u32 {
        7
    }
}

/// Fails as it did there, of which only the kind and the names are told.
#[farref::remote]
async fn look_from_afar(vase: RRef<Vase>) -> String {
    match vase.look().await {
        Err(Error::Timeout { peer, function, .. }) => format!("late {peer} {function}"),
        other => format!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_constructor_out_of_time_is_a_timeout_of_the_constructor_to_every_user() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let (owner, third) = (
        cluster.worker(0).peer("worker1")?,
        cluster.worker(0).peer("worker2")?,
    );
    // Making a connection takes of a call's time too, and what is left of it is what the owner knows.
    for peer in [&owner, &third] {
        peer.snapshot().await?;
    }
    let limit = Duration::from_millis(500);
    let here = cluster.worker(0).me();
    for owner in [&owner, &here] {
        let vase = Vase::shape_on(owner).timeout(limit).remote();
        // The second use comes when the failure is there already.
        for _ in 0..2 {
            let error = vase.look().await.unwrap_err();
            let Error::Timeout {
                peer,
                function,
                limit: given,
            } = &error
            else {
                panic!("{error:?}");
            };
            assert_eq!(&**peer, owner.name(), "{error}");
            assert!(function.as_str().ends_with("Vase::shape"), "{error}");
            assert!(*given > Duration::ZERO && *given <= limit, "{error}");
        }
        // What is made of it fails for the same reason.
        let copy = vase.copy().remote();
        let error = copy.look().await.unwrap_err();
        assert!(
            matches!(&error, Error::Timeout { function, .. }
                if function.as_str().ends_with("Vase::shape")),
            "{error:?}"
        );
        let told = look_from_afar::on(&third, vase.clone()).await?;
        assert!(
            told.starts_with(&format!("late {}", owner.name())) && told.contains("Vase::shape"),
            "{told}"
        );
    }
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_constructor_says_arrives_in_its_own_words_and_name() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let owner = cluster.worker(0).peer("worker1")?;
    let failing = [
        (
            Vase::drop_on_the_floor_on(&owner).remote(),
            false,
            "it broke",
            "Vase::drop_on_the_floor",
        ),
        (
            Vase::burst_on(&owner).remote(),
            true,
            "too hot",
            "Vase::burst",
        ),
    ];
    for (vase, panicked, message, constructor) in &failing {
        let error = vase.look().await.unwrap_err();
        let Error::Remote(remote) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(
            (&*remote.worker, remote.panicked, remote.message()),
            ("worker1", *panicked, *message)
        );
        assert!(remote.function.as_str().ends_with(constructor), "{error}");
    }
    drop(failing);
    Ok(cluster.shutdown().await?)
}
