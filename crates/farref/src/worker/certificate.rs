//! Says in time, and again when it is late, that a worker's certificate ends.
//!
//! A group goes on with certificates that have ended until a connection is to be made, which may be long after, and at
//! the worst moment. So the log says it a day and an hour ahead, and there is a metric for who wants to know earlier.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use metrics::Gauge;

use crate::native::Tls;
use crate::runtime::{Core, WorkerStage};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// How often the files are looked at: they may have been replaced, and the clock been set.
const LOOK: Duration = Duration::from_secs(600);

/// How soon a certificate ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ending {
    Later,
    WithinADay,
    WithinAnHour,
    Over,
}

impl Ending {
    /// How soon that is, and how long that stays so.
    fn at(ends: SystemTime, now: SystemTime) -> (Self, Duration) {
        let left = ends.duration_since(now).unwrap_or_default();
        if left.is_zero() {
            (Self::Over, Duration::MAX)
        } else if left <= HOUR {
            (Self::WithinAnHour, left)
        } else if left <= DAY {
            (Self::WithinADay, left.saturating_sub(HOUR))
        } else {
            (Self::Later, left.saturating_sub(DAY))
        }
    }
}

/// Watches the certificate of a worker until it is no member any more.
pub(super) fn watch_certificate(core: &Core, tls: Tls) -> impl Future<Output = ()> + use<> {
    let mut watch = Watch::new(&core.name);
    let mut stage = core.stage.subscribe();
    async move {
        let watching = async {
            loop {
                let pause = match tls.ends().await {
                    Some(ends) => watch.look(ends, SystemTime::now()),
                    None => LOOK,
                };
                tokio::time::sleep(pause).await;
            }
        };
        tokio::select! {
            _ = stage.wait_for(|stage| *stage > WorkerStage::Member) => {}
            () = watching => {}
        }
    }
}

/// What is known and was said of a worker's certificate.
struct Watch {
    worker: String,
    gauge: Gauge,
    /// What was said last, of the certificate that ends then.
    said: Option<(SystemTime, Ending)>,
}

impl Watch {
    fn new(worker: &str) -> Self {
        let worker = worker.to_owned();
        let gauge =
            metrics::gauge!("farref_certificate_end_timestamp_seconds", "worker" => worker.clone());
        let said = None;
        Self {
            worker,
            gauge,
            said,
        }
    }

    /// Looks at when the certificate ends, and says what is to be said. When to look again.
    fn look(&mut self, ends: SystemTime, now: SystemTime) -> Duration {
        let since = ends.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.gauge.set(since.as_secs_f64());
        let (ending, lasts) = Ending::at(ends, now);
        // Of another certificate all is to be said anew.
        let said = match self.said {
            Some((of, said)) if of == ends => said,
            _ => Ending::Later,
        };
        if ending > said {
            ending.say(&self.worker);
        }
        self.said = Some((ends, ending.max(said)));
        // Not before it is so.
        LOOK.min(lasts.saturating_add(Duration::from_secs(1)))
    }
}

impl Ending {
    fn say(self, worker: &str) {
        match self {
            Self::Later => {}
            Self::WithinADay => {
                tracing::warn!(
                    worker,
                    "this worker's certificate ends within a day: replace its files"
                );
            }
            Self::WithinAnHour => {
                tracing::warn!(
                    worker,
                    "this worker's certificate ends within an hour: replace its files"
                );
            }
            Self::Over => {
                tracing::error!(
                    worker,
                    "this worker's certificate has ended: connections that are there stay, new ones fail until its files are replaced"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;
    use crate::support::lock::lock;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What a watch says that looks whenever it wants to, until the certificate has ended, and the moments of those looks.
    fn lines(watch: &mut Watch, ends: SystemTime, mut now: SystemTime) -> Vec<String> {
        let log = Log::default();
        let to = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || to.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            while now < ends + 3 * LOOK {
                now += watch.look(ends, now);
            }
        });
        let text = lock(&log.0).clone();
        let text = String::from_utf8(text).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn it_is_said_a_day_ahead_an_hour_ahead_and_when_it_is_so_each_once() {
        let ends = UNIX_EPOCH + 100 * DAY;
        let recorder = DebuggingRecorder::new();
        let mut watch = metrics::with_local_recorder(&recorder, || Watch::new("ps"));
        let lines = |watch: &mut Watch, ends| {
            let said = lines(watch, ends, ends - 3 * DAY);
            let expected = [
                ("WARN", "within a day"),
                ("WARN", "within an hour"),
                ("ERROR", "has ended"),
            ];
            assert_eq!(said.len(), expected.len(), "{said:?}");
            for (line, (level, words)) in said.iter().zip(expected) {
                assert!(line.contains(level) && line.contains(words), "{line}");
                assert!(line.contains("worker=\"ps\""), "{line}");
            }
        };
        lines(&mut watch, ends);
        // Another one, of which all is said again.
        lines(&mut watch, ends + DAY);
        let seen = recorder.snapshotter().snapshot().into_vec();
        let [(key, _, _, DebugValue::Gauge(seconds))] = &seen[..] else {
            panic!("{seen:?}");
        };
        let name = key.key().name();
        assert_eq!(name, "farref_certificate_end_timestamp_seconds");
        assert_eq!(seconds.into_inner(), (101 * DAY).as_secs_f64());
    }

    /// Not a moment late.
    #[test]
    fn it_is_looked_at_again_when_something_is_to_be_said() {
        let ends = UNIX_EPOCH + 100 * DAY;
        let second = Duration::from_secs(1);
        let mut watch = Watch::new("ps");
        for (left, pause) in [
            (50 * DAY, LOOK),
            (DAY + second, 2 * second),
            (DAY - second, LOOK),
            (HOUR + 5 * second, 6 * second),
            (5 * second, 6 * second),
            (Duration::ZERO, LOOK),
        ] {
            assert_eq!(watch.look(ends, ends - left), pause, "{left:?}");
        }
    }
}
