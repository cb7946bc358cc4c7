//! What the caller can do, and what the callee chooses of it.
//!
//! Only the transport `uv` (TCP) and the channel `basic` (bytes over a connection of the transport) are offered
//! and understood here. Every PyTorch worker has both.

use std::collections::BTreeMap;

use crate::nop::{NopError, Reader, Writer};

const TRANSPORT: &str = "uv";
const TRANSPORT_DOMAIN: &str = "uv:*";
const CHANNEL: &str = "basic";
const CHANNEL_DOMAIN: &str = "any";
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

impl Brochure {
    /// What is offered here.
    pub(crate) fn ours() -> Self {
        let devices = BTreeMap::from([(cpu(), CHANNEL_DOMAIN.to_owned())]);
        Self {
            transports: BTreeMap::from([(TRANSPORT.to_owned(), TRANSPORT_DOMAIN.to_owned())]),
            channels: BTreeMap::from([(CHANNEL.to_owned(), devices)]),
        }
    }

    /// Whether what is understood here is among what the other side offers.
    pub(crate) fn has_ours(&self) -> bool {
        let transport = self.transports.get(TRANSPORT);
        let channel = self.channels.get(CHANNEL);
        transport.is_some_and(|domain| domain == TRANSPORT_DOMAIN)
            && channel.is_some_and(|devices| {
                devices
                    .get(&cpu())
                    .is_some_and(|domain| domain == CHANNEL_DOMAIN)
            })
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

/// What the callee chose: where to connect to, and under which numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// `host:port`.
    pub(crate) address: String,
    /// For the connection on which descriptors would be answered.
    pub(crate) reply: u64,
    /// For the connection that carries the bytes of tensors.
    pub(crate) channel: u64,
}

impl Answer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.members(7).text(TRANSPORT).text(&self.address);
        writer.pairs(1).unsigned(REPLY_ROLE).unsigned(self.reply);
        writer.text(TRANSPORT_DOMAIN);
        writer.pairs(1).text(CHANNEL).numbers(&[self.channel]);
        write_channels(&mut writer, &Brochure::ours().channels);
        writer.pairs(1).elements(2);
        write_device(&mut writer, &cpu());
        write_device(&mut writer, &cpu());
        writer.text(CHANNEL);
        writer.finish()
    }

    /// Reads an answer to [`Brochure::ours`], which leaves no choice.
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
        let mut channel = None;
        for _ in 0..reader.pairs()? {
            let (name, numbers) = (reader.text()?, reader.numbers()?);
            if let (CHANNEL, [number]) = (name, &numbers[..]) {
                channel = Some(*number);
            }
        }
        read_channels(&mut reader)?;
        for _ in 0..reader.pairs()? {
            expect(reader.elements()? == 2, "a pair of devices")?;
            read_device(&mut reader)?;
            read_device(&mut reader)?;
            expect(reader.text()? == CHANNEL, "the channel basic")?;
        }
        reader.finish()?;
        match (reply, channel) {
            (Some(reply), Some(channel)) => Ok(Self {
                address,
                reply,
                channel,
            }),
            _ => Err(disagreement("numbers for both connections")),
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
        assert_eq!(Brochure::ours().encode(), expected);
        let read = Brochure::decode(expected).expect("a brochure");
        assert!(read.has_ours());
    }

    #[test]
    fn an_answer_is_what_tensorpipe_writes() {
        let expected = b"\xb9\x07\xbd\x02uv\xbd\x0f127.0.0.1:39051\xbb\x01\x01\x00\xbd\x04uv:*\
            \xbb\x01\xbd\x05basic\xbc\x08\x01\0\0\0\0\0\0\0\
            \xbb\x01\xbd\x05basic\xbb\x01\xb9\x02\xbd\x03cpu\x00\xbd\x03any\
            \xbb\x01\xba\x02\xb9\x02\xbd\x03cpu\x00\xb9\x02\xbd\x03cpu\x00\xbd\x05basic";
        let answer = Answer {
            address: "127.0.0.1:39051".to_owned(),
            reply: 0,
            channel: 1,
        };
        assert_eq!(answer.encode(), expected);
        assert_eq!(Answer::decode(expected), Ok(answer));
        for size in 0..expected.len() {
            assert!(Answer::decode(&expected[..size]).is_err());
        }
    }
}
