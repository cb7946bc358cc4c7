//! The knobs of a session and what they stand at when nobody turns them.

use std::time::Duration;

/// How patient a session is.
///
/// Built from [`SessionConfig::default`] and changed field by field. Both ends may differ in every
/// one of these: nothing here is negotiated.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct SessionConfig {
    /// How long the peer may give no sign of life before it is suspected, connected or not.
    /// 10 s by default.
    pub peer_timeout: Duration,

    /// How often a ping is sent while connected. 2.5 s by default, so that three may go unheard
    /// before the fourth quarter of [`peer_timeout`](Self::peer_timeout) is over.
    ///
    /// Pings go out even while data flows: an end that receives one very large frame has nothing
    /// else to say, and its pings are what shows the sender that it is still there.
    pub heartbeat_interval: Duration,

    /// How long a received frame may wait for a frame going the other way that carries its
    /// acknowledgement along. 5 ms by default.
    pub ack_delay: Duration,

    /// After how many received frames an acknowledgement is sent without further delay.
    /// 64 by default.
    pub ack_every: u32,

    /// How long a connection may show no progress at something it owes us (the peer's greeting, an
    /// acknowledgement, an answer to a ping) before it is taken for stuck and a reset is asked for.
    /// 2 s by default.
    ///
    /// It doubles with each reset that brought no progress, so that a frame which takes longer than
    /// this to cross a slow link does cross it in the end.
    pub ack_timeout: Duration,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            peer_timeout: Duration::from_secs(10),
            heartbeat_interval: Duration::from_millis(2500),
            ack_delay: Duration::from_millis(5),
            ack_every: 64,
            ack_timeout: Duration::from_secs(2),
        }
    }
}

/// Doublings of the patience after which it grows no more: with the defaults, a day and a half.
const MAX_DOUBLINGS: u32 = 16;

impl SessionConfig {
    /// How long a connection may stand still after `fruitless` resets in a row that helped nothing.
    pub(super) fn patience(&self, fruitless: u32) -> Duration {
        self.ack_timeout
            .saturating_mul(1 << fruitless.min(MAX_DOUBLINGS))
    }
}
