//! Workers with certificates: the invariants TL-1 and HS-6 are those of `native/transport/tls` and `native/handshake`.

use std::time::Duration;

use anyhow::{Result, ensure};
use farref::observe::{ObserveError, Observer};
use farref::{ConfigError, Error, RendezvousError, StoreServer, Tls, Worker, WorkerBuilder};

use crate::PATIENCE;
use crate::certificates::{Authority, tls};

/// What nobody here is to wait for.
const LIMIT: Duration = Duration::from_secs(3600);

#[farref::remote(name = "tls::reversed")]
async fn reversed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.reverse();
    bytes
}

struct Place {
    store: StoreServer,
}

impl Place {
    async fn new() -> Result<Self> {
        let store = StoreServer::bind("127.0.0.1:0").await?;
        Ok(Self { store })
    }

    fn worker(&self, name: &str) -> WorkerBuilder {
        Worker::builder(name)
            .rendezvous(&format!("tcp://{}", self.store.local_addr()))
            .store_is_hosted_elsewhere()
            .join_timeout(LIMIT)
            .unix_sockets(false)
            .fail_on_leaks(true)
    }

    /// The first worker of a group.
    async fn first(&self, authority: &Authority) -> Result<Worker> {
        let first = self.worker("first").tls(authority.worker("first"));
        Ok(first.join().await?)
    }
}

async fn refusal(builder: WorkerBuilder) -> Error {
    let joined = builder.join().await;
    joined.expect_err("it is not to be let in")
}

#[tokio::test]
async fn workers_with_certificates_talk_over_tls_and_need_neither_token_nor_insecure() -> Result<()>
{
    let authority = Authority::new();
    let place = Place::new().await?;
    let first = place.first(&authority).await?;
    let second = place.worker("second").tls(authority.worker("second"));
    // Others would reach it there.
    let second = second.bind([0, 0, 0, 0].into()).join().await?;
    let peer = first.wait_for_peer("second", PATIENCE).await?;
    for size in [0, 10, 100_000, 20 << 20] {
        let bytes: Vec<u8> = (0..size).map(|i: usize| (i % 251) as u8).collect();
        let mut expected = bytes.clone();
        expected.reverse();
        ensure!(reversed::on(&peer, bytes).await? == expected, "{size}");
    }
    let kept = reversed::on(&peer, vec![1, 2]).remote();
    ensure!(kept.to_here().await? == [2, 1]);
    drop(kept);
    let snapshot = first.snapshot();
    let transports: Vec<_> = snapshot
        .peers
        .iter()
        .flat_map(|peer| &peer.transport)
        .collect();
    ensure!(transports == ["tls"], "{transports:?}");
    tokio::try_join!(first.shutdown(), second.shutdown())?;
    Ok(())
}

#[tokio::test]
async fn who_has_no_certificate_or_anothers_is_told_so_at_once() -> Result<()> {
    let [authority, another] = [Authority::new(), Authority::new()];
    let place = Place::new().await?;
    let first = place.first(&authority).await?;
    for tls in [None, Some(another.worker("second"))] {
        let builder = place.worker("second").token("none is asked for");
        let builder = match tls {
            Some(tls) => builder.tls(tls),
            None => builder,
        };
        let error = refusal(builder).await;
        let Error::Rendezvous(reason) = &error else {
            panic!("{error:?}");
        };
        ensure!(
            matches!(**reason, RendezvousError::Certificate { .. }),
            "{error:?}"
        );
        ensure!(error.to_string().contains("farref certs"), "{error}");
    }
    first.shutdown().await?;
    Ok(())
}

#[tokio::test]
async fn a_certificate_is_for_its_own_name() -> Result<()> {
    let authority = Authority::new();
    let place = Place::new().await?;
    let observer = authority.issue("observer", &["farref:observer"]);
    for other in [authority.worker("somebody"), tls(observer)] {
        let error = refusal(place.worker("me").tls(other)).await;
        let Error::Config(ConfigError::CertificateName { name, .. }) = &error else {
            panic!("{error:?}");
        };
        ensure!(name == "me", "{error}");
    }
    let any = tls(authority.issue("any", &["farref:worker/*"]));
    let me = place.worker("me").tls(any).join().await?;
    me.shutdown().await?;
    Ok(())
}

#[tokio::test]
async fn observers_show_a_certificate_too() -> Result<()> {
    let [authority, another] = [Authority::new(), Authority::new()];
    let place = Place::new().await?;
    let first = place.first(&authority).await?;
    let address = place.store.local_addr().to_string();
    let look = async |tls: Option<Tls>| -> Result<Vec<String>, ObserveError> {
        let observer = match tls {
            Some(tls) => Observer::new().tls(tls),
            None => Observer::new(),
        };
        let mut group = observer.group(&address).await?;
        let seen = group.look().await.into_iter();
        seen.map(|seen| Ok(seen.snapshot?.worker)).collect()
    };
    for bearer in [["farref:observer"], ["farref:worker/other"]] {
        let certificate = tls(authority.issue("looks", &bearer));
        let seen = look(Some(certificate)).await?;
        ensure!(seen == ["first"], "{seen:?}");
    }
    let strange = tls(another.issue("looks", &["farref:observer"]));
    for certificate in [None, Some(strange)] {
        let error = look(certificate)
            .await
            .expect_err("it is not shown anything");
        ensure!(
            matches!(error, ObserveError::Certificate { .. }),
            "{error:?}"
        );
    }
    first.shutdown().await?;
    Ok(())
}
