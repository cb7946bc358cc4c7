//! Workers with certificates: the invariants TL-1 and HS-6 are those of `native/transport/tls` and `native/handshake`.

use std::time::Duration;

use anyhow::{Result, ensure};
use farref::observe::{ObserveError, Observer};
use farref::{ConfigError, Error, RendezvousError, StoreServer, Tls, Worker, WorkerBuilder};
use farref_testkit::TEST_TIMEOUT;

use crate::certificates::{Authority, tls, worker_tls};

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
        let first = self.worker("first").tls(worker_tls(authority, "first"));
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
    let second = place.worker("second").tls(worker_tls(&authority, "second"));
    // Others would reach it there.
    let second = second.bind([0, 0, 0, 0].into()).join().await?;
    let peer = first.wait_for_peer("second", TEST_TIMEOUT).await?;
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
    for tls in [None, Some(worker_tls(&another, "second"))] {
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
    for other in [worker_tls(&authority, "somebody"), tls(observer)] {
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

/// F4: all of them, before there is a group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_founders_whose_certificates_do_not_go_together_are_told_at_once() -> Result<()> {
    let [authority, another] = [Authority::new(), Authority::new()];
    for (other, reason) in [
        (Some(worker_tls(&another, "one")), "not of one authority"),
        (None, "some have none"),
    ] {
        let place = Place::new().await?;
        let founder = |name: &str, rank| {
            let builder = place.worker(name).rank(rank).world_size(3);
            builder.token("the group's")
        };
        let [zero, two] = [("zero", 0), ("two", 2)]
            .map(|(name, rank)| founder(name, rank).tls(worker_tls(&authority, name)));
        let one = match other {
            Some(tls) => founder("one", 1).tls(tls),
            None => founder("one", 1),
        };
        let (zero, one, two) = tokio::join!(refusal(zero), refusal(one), refusal(two));
        for error in [zero, one, two] {
            let Error::Rendezvous(told) = &error else {
                panic!("{error:?}");
            };
            let RendezvousError::DifferentCertificates { one, others, .. } = &**told else {
                panic!("{error:?}");
            };
            ensure!(one == "zero" && others == &["one"], "{error}");
            let text = error.to_string();
            for word in [reason, "farref certs", "FARREF_TLS_CA"] {
                ensure!(text.contains(word), "{text}");
            }
        }
    }
    Ok(())
}

/// OB-4 of `native/inquiry/observe`: the store may lead to somebody else.
#[tokio::test]
async fn an_observer_that_is_led_to_another_worker_sees_nothing_of_it() -> Result<()> {
    let authority = Authority::new();
    let [place, elsewhere] = [Place::new().await?, Place::new().await?];
    let other = elsewhere
        .worker("other")
        .tls(worker_tls(&authority, "other"));
    let other = other.join().await?;
    let peers = other.snapshot().peers;
    let port = peers.iter().flat_map(|peer| &peer.addresses);
    let port = port.filter_map(|address| address.rsplit(':').next()?.parse().ok());
    let port: Vec<u16> = port.collect();
    // By its card it is where the other is.
    let first = place.worker("first").tls(worker_tls(&authority, "first"));
    let first = first.advertise_port(port[0]).join().await?;
    let observer = tls(authority.issue("observer", &["farref:observer"]));
    let observer = Observer::new().tls(observer);
    let mut group = observer
        .group(&place.store.local_addr().to_string())
        .await?;
    let seen = group.look().await;
    let [sighting] = &seen[..] else {
        panic!("{seen:?}")
    };
    ensure!(sighting.name == "first");
    ensure!(
        matches!(sighting.snapshot, Err(ObserveError::Certificate { .. })),
        "{seen:?}"
    );
    tokio::try_join!(first.shutdown(), other.shutdown())?;
    Ok(())
}

/// F4: what does not show in the store shows when workers connect, and then whoever has lost the other is told why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_who_is_lost_because_of_a_certificate_is_said_to_be() -> Result<()> {
    let [authority, another] = [Authority::new(), Authority::new()];
    let place = Place::new().await?;
    let founder = |name: &str, rank| {
        let builder = place.worker(name).rank(rank).world_size(2);
        builder.peer_timeout(Duration::from_secs(5))
    };
    // With so many authorities a card does not say which.
    let [certificate, key, _] = authority.issue("zero", &["farref:worker/zero"]);
    let more: String = (0..8).map(|_| Authority::new().pem()).collect();
    let many = authority.file("many.pem");
    std::fs::write(&many, authority.pem() + &more)?;
    let zero = founder("zero", 0).tls(tls([certificate, key, many]));
    // Takes the other's certificate, and has one that the other does not take.
    let [certificate, key, _] = another.issue("one", &["farref:worker/one"]);
    let both = another.file("both.pem");
    std::fs::write(&both, authority.pem() + &another.pem())?;
    let one = founder("one", 1).tls(tls([certificate, key, both]));
    let (zero, one) = tokio::try_join!(zero.join(), one.join())?;

    for (worker, other) in [(&zero, "one"), (&one, "zero")] {
        let peer = worker.peer(other)?;
        for _ in 0..2 {
            let error = reversed::on(&peer, vec![1, 2]).await;
            let error = error.expect_err("they cannot talk");
            let Error::PeerLost { peer, cause, .. } = &error else {
                panic!("{error:?}");
            };
            ensure!(&**peer == other, "{error}");
            let Some(RendezvousError::Certificate { by, .. }) = cause.as_deref() else {
                panic!("{error:?}");
            };
            ensure!(by == other, "{error}");
            ensure!(error.to_string().contains("farref certs"), "{error}");
        }
    }
    tokio::try_join!(zero.shutdown(), one.shutdown())?;
    Ok(())
}

/// Unix sockets are without TLS, and still nobody is let in by them whom the others would not take over TCP.
#[tokio::test]
async fn on_one_host_too_all_workers_have_a_certificate_or_none_has() -> Result<()> {
    let authority = Authority::new();
    for first_has_one in [true, false] {
        let place = Place::new().await?;
        let worker = |name: &str, has_one| {
            let builder = place.worker(name).unix_sockets(true);
            match has_one {
                true => builder.tls(worker_tls(&authority, name)),
                false => builder,
            }
        };
        let first = worker("first", first_has_one).join().await?;
        let error = refusal(worker("second", !first_has_one)).await;
        let Error::Rendezvous(reason) = &error else {
            panic!("{error:?}");
        };
        ensure!(
            matches!(**reason, RendezvousError::Certificate { .. }),
            "{error:?}"
        );
        let second = worker("third", first_has_one).join().await?;
        tokio::try_join!(first.shutdown(), second.shutdown())?;
    }
    Ok(())
}
