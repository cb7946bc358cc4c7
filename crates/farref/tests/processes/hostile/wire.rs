//! farref's wire, spoken by hand: by a program that says what no worker says.
//!
//! It is written after docs/protocol.md, section 13, and shares no code with the workers that it talks to.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use farref::agent::{FunctionRef, Origins, TraceContext};
use farref_proto::{
    Acks, AnswerHead, CallHead, Control, Frame, GroupId, Hello, Lane, MessageId, NodeId,
    SESSION_VERSION,
};
use farref_rendezvous::group::Card;
use farref_testkit::TEST_TIMEOUT;
use ring::hmac;
use serde::{Deserialize, Serialize};

/// The version of the wire that this speaks.
pub(crate) const WIRE: u16 = 8;

pub(crate) type Nonce = [u8; 16];

#[derive(Serialize)]
pub(crate) enum Greeting {
    Worker {
        group: GroupId,
        to: NodeId,
        nonce: Nonce,
    },
}

#[derive(Debug, Deserialize)]
pub(crate) enum Reply {
    Refused(Refusal),
    Challenge(#[expect(dead_code, reason = "it is in the transcript")] Nonce),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(crate) enum Refusal {
    Version(u16),
    Group,
    Token,
    WrongLife(NodeId),
    Gone,
    Busy,
    Closing,
    Stale,
    Session,
    Crowded,
    User,
    NeedsTls,
    NoTls,
    Name,
}

#[derive(Serialize)]
pub(crate) struct Claim {
    pub(crate) card: Card,
    pub(crate) max_calls: u32,
    pub(crate) purpose: Purpose,
}

#[derive(Serialize)]
pub(crate) enum Purpose {
    Main(SessionHello),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SessionHello {
    pub(crate) epoch: u64,
    pub(crate) session: Hello,
}

#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "what is not used comes before what is")]
pub(crate) enum Verdict {
    Refused(Refusal),
    Main(Box<Card>, u32, SessionHello),
}

#[derive(Serialize)]
enum FrameHead {
    Session(Frame<Option<u64>>),
}

/// All of a message but its payload.
#[derive(Serialize)]
pub(crate) enum Head {
    Control(Control),
    Call {
        head: CallHead,
        function: Option<FunctionRef>,
        remaining: Option<Duration>,
        trace: TraceContext,
        callers: Vec<()>,
        origins: Origins,
    },
    Answer {
        head: AnswerHead,
        origins: Origins,
        failure: Option<()>,
    },
    #[expect(dead_code, reason = "what comes behind it has its number")]
    Cancel(MessageId),
    Credit {
        calls: u32,
        bytes: u64,
    },
}

/// Whom it talks to, and what it knows for that.
#[derive(Clone)]
pub(crate) struct Victim {
    pub(crate) card: Card,
    pub(crate) address: SocketAddr,
    pub(crate) group: GroupId,
    pub(crate) token: String,
    /// Another honest worker.
    pub(crate) other: NodeId,
}

impl Victim {
    pub(crate) fn connect(&self) -> anyhow::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT))?;
        stream.set_write_timeout(Some(TEST_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    pub(crate) fn greeting(&self) -> Greeting {
        Greeting::Worker {
            group: self.group,
            to: self.card.node,
            nonce: [7; 16],
        }
    }

    /// What whoever has this card claims to be.
    pub(crate) fn claim(&self, by: &Card, epoch: u64) -> Claim {
        Claim {
            card: by.clone(),
            max_calls: 64,
            purpose: Purpose::Main(SessionHello {
                epoch,
                session: Hello {
                    version: SESSION_VERSION,
                    group: self.group,
                    from: by.node,
                    to: self.card.node,
                    expected: [0; 3],
                },
            }),
        }
    }
}

/// One end of a handshake.
pub(crate) struct Handshake {
    pub(crate) stream: TcpStream,
    transcript: Vec<u8>,
    key: hmac::Key,
}

impl Handshake {
    pub(crate) fn new(stream: TcpStream, token: &str) -> Self {
        Self {
            stream,
            transcript: Vec::new(),
            key: hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes()),
        }
    }

    pub(crate) fn greet(&mut self, greeting: &Greeting) -> anyhow::Result<Reply> {
        let body = postcard::to_allocvec(greeting)?;
        let mut bytes = b"farref".to_vec();
        bytes.extend(WIRE.to_le_bytes());
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(body);
        self.stream.write_all(&bytes)?;
        self.transcript.extend(bytes);

        let mut opening = [0; 12];
        self.stream.read_exact(&mut opening)?;
        ensure!(opening.starts_with(b"farref"), "no worker");
        let length = u32::from_le_bytes(opening[8..].try_into()?);
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body)?;
        self.transcript.extend(opening);
        self.transcript.extend(&body);
        Ok(postcard::from_bytes(&body)?)
    }

    pub(crate) fn claim(&mut self, claim: &Claim) -> anyhow::Result<Verdict> {
        let body = postcard::to_allocvec(claim)?;
        self.transcript.extend((body.len() as u32).to_le_bytes());
        self.transcript.extend(&body);
        let proved = [&b"farref dialer"[..], &self.transcript].concat();
        let proof = hmac::sign(&self.key, &proved);
        let mut bytes = ((body.len() + 32) as u32).to_le_bytes().to_vec();
        bytes.extend(body);
        bytes.extend(proof.as_ref());
        self.stream.write_all(&bytes)?;

        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut verdict = vec![0; u32::from_le_bytes(length) as usize];
        self.stream.read_exact(&mut verdict)?;
        let body = verdict.len().checked_sub(32).context("no verdict")?;
        Ok(postcard::from_bytes(&verdict[..body])?)
    }
}

/// A member's connection to another, and how far each lane is.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) victim: Victim,
    pub(crate) me: Card,
    pub(crate) next: [u64; 3],
}

impl Connection {
    pub(crate) fn open(victim: &Victim, me: &Card, epoch: u64) -> anyhow::Result<Self> {
        let mut handshake = Handshake::new(victim.connect()?, &victim.token);
        let reply = handshake.greet(&victim.greeting())?;
        ensure!(matches!(reply, Reply::Challenge(_)), "{reply:?}");
        match handshake.claim(&victim.claim(me, epoch))? {
            Verdict::Main(_, _, hello) => Ok(Self {
                stream: handshake.stream,
                victim: victim.clone(),
                me: me.clone(),
                next: hello.session.expected,
            }),
            Verdict::Refused(refusal) => bail!("refused: {refusal:?}"),
        }
    }

    /// A frame with the next number of its lane.
    pub(crate) fn frame(&mut self, lane: Lane, head: &Head, body: &[u8]) -> Vec<u8> {
        let seq = self.next[lane.index()];
        self.next[lane.index()] += 1;
        frame(lane, seq, Acks([0; 3]), head, body)
    }

    pub(crate) fn say(&mut self, head: &Head, body: &[u8]) -> io::Result<()> {
        let lane = match head {
            Head::Control(_) => Lane::Control,
            _ => Lane::Call,
        };
        let bytes = self.frame(lane, head, body);
        self.stream.write_all(&bytes)
    }

    /// Reads until the end of a message whose body ends with `last`. Only answers have bodies.
    pub(crate) fn read_answer(&mut self, last: u8) -> anyhow::Result<()> {
        loop {
            let mut prefix = [0; 16];
            self.stream.read_exact(&mut prefix)?;
            let (head, rest) = prefix.split_at(4);
            let (parts, body) = rest.split_at(4);
            let head = u32::from_le_bytes(head.try_into()?);
            let body = u64::from_le_bytes(body.try_into()?);
            ensure!(parts == [0; 4], "a message with parts");
            let mut rest = vec![0; (u64::from(head) + body).try_into()?];
            self.stream.read_exact(&mut rest)?;
            if body > 0 && rest.last() == Some(&last) {
                return Ok(());
            }
        }
    }

    /// Reads until it is hung up on.
    pub(crate) fn is_hung_up_on(&mut self) -> anyhow::Result<()> {
        let mut nowhere = [0; 4096];
        loop {
            match self.stream.read(&mut nowhere) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => bail!("it is still connected: {error}"),
            }
        }
    }
}

/// The bytes of a message.
pub(crate) fn frame(lane: Lane, seq: u64, acks: Acks, head: &Head, body: &[u8]) -> Vec<u8> {
    let session = FrameHead::Session(Frame::Data {
        lane,
        seq,
        acks,
        payload: None,
    });
    let heads = postcard::to_allocvec(&session).and_then(|bytes| postcard::to_extend(head, bytes));
    let heads = heads.unwrap_or_default();
    let mut bytes = prefix(heads.len() as u32, 0, body.len() as u64);
    bytes.extend(heads);
    bytes.extend(body);
    bytes
}

/// What every frame begins with.
pub(crate) fn prefix(head: u32, parts: u32, body: u64) -> Vec<u8> {
    let mut bytes = head.to_le_bytes().to_vec();
    bytes.extend(parts.to_le_bytes());
    bytes.extend(body.to_le_bytes());
    bytes
}
