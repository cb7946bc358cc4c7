//! What the caller can do, and what the callee chooses of it.
//!
//! Only the transport `uv` (TCP) and the channels `basic` (bytes over a connection of the transport) and `cma` (bytes
//! read out of the sender's memory) are offered and understood here. Every PyTorch worker has the first two, and those of
//! the same host have the third: it is chosen where both offer it, as PyTorch's workers do.

use std::collections::BTreeMap;

use crate::nop::{NopError, Reader, Writer};

const TRANSPORT: &str = "uv";
const TRANSPORT_DOMAIN: &str = "uv:*";
const BASIC: &str = "basic";
const BASIC_DOMAIN: &str = "any";
const CMA: &str = "cma";
/// The connection on which descriptors would be answered.
const REPLY_ROLE: u64 = 1;

/// What a caller offers: domains by name. Two sides can use something if they have equal domains for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Brochure {
    transports: BTreeMap<String, String>,
    /// By channel, then by device.
    channels: BTreeMap<String, BTreeMap<Device, String>>,
}

/// A device: its kind and its number.
pub(crate) type Device = (String, u64);

/// The only device here.
pub(crate) fn cpu() -> Device {
    ("cpu".to_owned(), 0)
}

/// The numbers under which the connections of a channel are to come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ChannelNumbers {
    Basic {
        bytes: u64,
    },
    Cma {
        /// Who can read whose memory, as both see it.
        domain: String,
        /// For the connection that says where tensors are.
        places: u64,
        /// For the connection that says when they have been read.
        completions: u64,
    },
}

impl Brochure {
    /// What is offered here, with `cma` if there is a domain for it.
    pub(crate) fn ours(cma: Option<&str>) -> Self {
        let mut channels = BTreeMap::from([(BASIC.to_owned(), on_cpu(BASIC_DOMAIN))]);
        if let Some(domain) = cma {
            channels.insert(CMA.to_owned(), on_cpu(domain));
        }
        Self {
            transports: BTreeMap::from([(TRANSPORT.to_owned(), TRANSPORT_DOMAIN.to_owned())]),
            channels,
        }
    }

    /// Whether what every worker has is among what the other side offers.
    pub(crate) fn has_ours(&self) -> bool {
        let transport = self.transports.get(TRANSPORT);
        transport.is_some_and(|domain| domain == TRANSPORT_DOMAIN)
            && self.has_channel(BASIC, BASIC_DOMAIN)
    }

    /// Whether the other side can read the memory of those of this domain, and lets them read its own.
    pub(crate) fn has_cma(&self, domain: &str) -> bool {
        self.has_channel(CMA, domain)
    }

    fn has_channel(&self, channel: &str, domain: &str) -> bool {
        let devices = self.channels.get(channel);
        devices
            .and_then(|devices| devices.get(&cpu()))
            .map(String::as_str)
            == Some(domain)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.members(2).pairs(self.transports.len());
        for (name, domain) in &self.transports {
            writer.text(name).text(domain);
        }
        write_channels(&mut writer, &self.channels);
        writer.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, NopError> {
        let mut reader = Reader::new(bytes);
        reader.members(2)?;
        let mut transports = BTreeMap::new();
        for _ in 0..reader.pairs()? {
            transports.insert(reader.text()?.to_owned(), reader.text()?.to_owned());
        }
        let channels = read_channels(&mut reader)?;
        reader.finish()?;
        Ok(Self {
            transports,
            channels,
        })
    }
}

fn on_cpu(domain: &str) -> BTreeMap<Device, String> {
    BTreeMap::from([(cpu(), domain.to_owned())])
}

/// What the callee chose: where to connect to, and under which numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// `host:port`.
    pub(crate) address: String,
    /// For the connection on which descriptors would be answered.
    pub(crate) reply: u64,
    pub(crate) channel: ChannelNumbers,
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (name, domain, numbers) = match &self.channel {
            ChannelNumbers::Basic { bytes } => (BASIC, BASIC_DOMAIN, vec![*bytes]),
            ChannelNumbers::Cma {
                domain,
                places,
                completions,
            } => (CMA, &domain[..], vec![*places, *completions]),
        };
        let mut writer = Writer::new();
        writer.members(7).text(TRANSPORT).text(&self.address);
        writer.pairs(1).unsigned(REPLY_ROLE).unsigned(self.reply);
        writer.text(TRANSPORT_DOMAIN);
        writer.pairs(1).text(name).numbers(&numbers);
        let channels = BTreeMap::from([(name.to_owned(), on_cpu(domain))]);
        write_channels(&mut writer, &channels);
        writer.pairs(1).elements(2);
        write_device(&mut writer, &cpu());
        write_device(&mut writer, &cpu());
        writer.text(name);
        writer.finish()
    }

    /// Reads an answer to [`Brochure::ours`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, NopError> {
        let mut reader = Reader::new(bytes);
        reader.members(7)?;
        expect(reader.text()? == TRANSPORT, "the transport uv")?;
        let address = reader.text()?.to_owned();
        let mut reply = None;
        for _ in 0..reader.pairs()? {
            let (role, number) = (reader.unsigned()?, reader.unsigned()?);
            if role == REPLY_ROLE {
                reply = Some(number);
            }
        }
        expect(reader.text()? == TRANSPORT_DOMAIN, "the domain uv:*")?;
        let mut numbers = BTreeMap::new();
        for _ in 0..reader.pairs()? {
            numbers.insert(reader.text()?, reader.numbers()?);
        }
        let channels = read_channels(&mut reader)?;
        let mut chosen = None;
        for _ in 0..reader.pairs()? {
            expect(reader.elements()? == 2, "a pair of devices")?;
            read_device(&mut reader)?;
            read_device(&mut reader)?;
            let channel = reader.text()?;
            expect(chosen.is_none_or(|other| other == channel), "one channel")?;
            chosen = Some(channel);
        }
        reader.finish()?;
        let numbers = chosen.and_then(|name| numbers.get(name));
        let channel = match (chosen, numbers.map(Vec::as_slice)) {
            (Some(BASIC), Some(&[bytes])) => Some(ChannelNumbers::Basic { bytes }),
            (Some(CMA), Some(&[places, completions])) => {
                let devices = channels.get(CMA);
                let domain = devices.and_then(|devices| devices.get(&cpu()));
                domain.map(|domain| ChannelNumbers::Cma {
                    domain: domain.clone(),
                    places,
                    completions,
                })
            }
            _ => None,
        };
        match (reply, channel) {
            (Some(reply), Some(channel)) => Ok(Self {
                address,
                reply,
                channel,
            }),
            _ => Err(disagreement("numbers for all connections")),
        }
    }
}

fn expect(is_so: bool, expected: &'static str) -> Result<(), NopError> {
    match is_so {
        true => Ok(()),
        false => Err(disagreement(expected)),
    }
}

fn disagreement(expected: &'static str) -> NopError {
    NopError::Count {
        what: "an answer without it",
        count: 0,
        expected,
    }
}

fn write_channels(writer: &mut Writer, channels: &BTreeMap<String, BTreeMap<Device, String>>) {
    writer.pairs(channels.len());
    for (name, devices) in channels {
        writer.text(name).pairs(devices.len());
        for (device, domain) in devices {
            write_device(writer, device);
            writer.text(domain);
        }
    }
}

fn read_channels(
    reader: &mut Reader<'_>,
) -> Result<BTreeMap<String, BTreeMap<Device, String>>, NopError> {
    let mut channels = BTreeMap::new();
    for _ in 0..reader.pairs()? {
        let name = reader.text()?.to_owned();
        let mut devices = BTreeMap::new();
        for _ in 0..reader.pairs()? {
            let device = read_device(reader)?;
            devices.insert(device, reader.text()?.to_owned());
        }
        channels.insert(name, devices);
    }
    Ok(channels)
}

pub(super) fn write_device(writer: &mut Writer, (kind, number): &Device) {
    writer.members(2).text(kind).unsigned(*number);
}

pub(super) fn read_device(reader: &mut Reader<'_>) -> Result<Device, NopError> {
    reader.members(2)?;
    Ok((reader.text()?.to_owned(), reader.unsigned()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brochure_is_what_tensorpipe_writes() {
        let expected = b"\xb9\x02\xbb\x01\xbd\x02uv\xbd\x04uv:*\
            \xbb\x01\xbd\x05basic\xbb\x01\xb9\x02\xbd\x03cpu\x00\xbd\x03any";
        assert_eq!(Brochure::ours(None).encode(), expected);
        let read = Brochure::decode(expected).expect("a brochure");
        assert!(read.has_ours());
        assert!(!read.has_cma("cma:1"));
        let with_cma = Brochure::ours(Some("cma:1"));
        let read = Brochure::decode(&with_cma.encode()).expect("a brochure");
        assert_eq!(read, with_cma);
        assert!(read.has_ours() && read.has_cma("cma:1") && !read.has_cma("cma:2"));
    }

    #[test]
    fn an_answer_is_what_tensorpipe_writes() {
        let basic: &[u8] = b"\xb9\x07\xbd\x02uv\xbd\x0f127.0.0.1:39051\xbb\x01\x01\x00\xbd\x04uv:*\
            \xbb\x01\xbd\x05basic\xbc\x08\x01\0\0\0\0\0\0\0\
            \xbb\x01\xbd\x05basic\xbb\x01\xb9\x02\xbd\x03cpu\x00\xbd\x03any\
            \xbb\x01\xba\x02\xb9\x02\xbd\x03cpu\x00\xb9\x02\xbd\x03cpu\x00\xbd\x05basic";
        let cma: &[u8] = b"\xb9\x07\xbd\x02uv\xbd\x0f127.0.0.1:39051\xbb\x01\x01\x00\xbd\x04uv:*\
            \xbb\x01\xbd\x03cma\xbc\x10\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\
            \xbb\x01\xbd\x03cma\xbb\x01\xb9\x02\xbd\x03cpu\x00\xbd\x05cma:1\
            \xbb\x01\xba\x02\xb9\x02\xbd\x03cpu\x00\xb9\x02\xbd\x03cpu\x00\xbd\x03cma";
        let through_memory = ChannelNumbers::Cma {
            domain: "cma:1".to_owned(),
            places: 1,
            completions: 2,
        };
        for (expected, channel) in [
            (basic, ChannelNumbers::Basic { bytes: 1 }),
            (cma, through_memory),
        ] {
            let answer = Answer {
                address: "127.0.0.1:39051".to_owned(),
                reply: 0,
                channel,
            };
            assert_eq!(answer.encode(), expected);
            assert_eq!(Answer::decode(expected), Ok(answer));
            for size in 0..expected.len() {
                assert!(Answer::decode(&expected[..size]).is_err());
            }
        }
    }
}
