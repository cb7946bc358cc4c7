//! What the members of a static group tell each other before RPC is up: their names, how many accelerators
//! they have, and to which devices of others their tensors go.

use crate::pickle::{Pickle, PickleError, Shape, View, Writer};

/// What a member has told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Told {
    pub(super) name: String,
    /// Devices of this worker that it wants to send to, beside its memory.
    pub(super) wants: Vec<String>,
}

/// What this worker tells: `(name, 0, {}, [])`, that is, it has no accelerator.
pub(super) fn write(name: &str) -> Vec<u8> {
    let mut writer = Writer::new(4);
    writer.mark().text(name.as_bytes()).int(0);
    writer.empty_dict().empty_list().tuple();
    writer.finish()
}

/// Reads what a member tells the worker of the name `own`.
pub(super) fn read(bytes: &[u8], own: &str) -> Result<Told, PickleError> {
    let pickle = Pickle::read(bytes)?;
    let budget = pickle.budget();
    let [name, _count, maps, _devices] = pickle.view(&budget).tuple_of()?;
    let name = text(&name)?;
    let mut wants = Vec::new();
    for (target, map) in dict(&maps)? {
        if target.text()? != own.as_bytes() {
            continue;
        }
        for (_, to) in dict(&map)? {
            let device = device(&to)?;
            if device != "cpu" {
                wants.push(device);
            }
        }
    }
    Ok(Told { name, wants })
}

/// `torch.device("cuda", 0)`, as PyTorch would print it.
fn device(view: &View<'_, '_>) -> Result<String, PickleError> {
    let Some(arguments) = view.call_of("torch", "device")? else {
        return Err(view.shape()?.is_not("a device"));
    };
    match &arguments[..] {
        [kind] => text(kind),
        [kind, index] => Ok(format!("{}:{}", text(kind)?, index.int()?)),
        _ => Err(view.shape()?.is_not("a device")),
    }
}

fn text(view: &View<'_, '_>) -> Result<String, PickleError> {
    let text = String::from_utf8(view.text()?.to_vec());
    text.map_err(|_| PickleError::Expected {
        expected: "a text",
        found: "one that is not UTF-8".to_owned(),
    })
}

type Pairs<'p, 'a> = Vec<(View<'p, 'a>, View<'p, 'a>)>;

fn dict<'p, 'a>(view: &View<'p, 'a>) -> Result<Pairs<'p, 'a>, PickleError> {
    match view.shape()? {
        Shape::Dict(items) => Ok(items),
        other => Err(other.is_not("a dict")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks(2);
        let digit = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16);
        digits.map(|pair| digit(pair).unwrap()).collect()
    }

    fn told(name: &str) -> Told {
        Told {
            name: name.to_owned(),
            wants: Vec::new(),
        }
    }

    #[test]
    fn what_this_worker_tells_is_understood_again() {
        let bytes = write("worker0");
        assert_eq!(read(&bytes, "worker0"), Ok(told("worker0")));
    }

    /// Taken from the wire of PyTorch.
    #[test]
    fn what_pytorch_tells_is_understood() {
        let bytes = hex("8004951400000000000000288c07776f726b657230944b007d945d9474942e");
        assert_eq!(read(&bytes, "worker1"), Ok(told("worker0")));
    }

    /// `pickle.dumps(("a", 2, {"b": {torch.device("cuda:1"): torch.device("cuda:0")}}, []))`, and the same
    /// with `torch.device("cpu")` as the target.
    #[test]
    fn who_wants_to_send_to_devices_of_this_worker_is_found_out() {
        let maps = |kind: &str, index: Option<i64>| {
            let mut writer = Writer::new(4);
            writer.mark().text(b"a").int(2);
            writer.empty_dict().mark().text(b"b");
            writer.empty_dict().mark();
            writer.global("torch", "device").text(b"cuda").int(1);
            writer.tuple_of(2).reduce();
            writer.global("torch", "device").text(kind.as_bytes());
            match index {
                Some(index) => writer.int(index).tuple_of(2),
                None => writer.tuple_of(1),
            };
            writer.reduce().set_items().set_items();
            writer.empty_list().tuple();
            writer.finish()
        };
        let cuda = maps("cuda", Some(0));
        assert_eq!(read(&cuda, "b").unwrap().wants, ["cuda:0"]);
        assert_eq!(read(&cuda, "c").unwrap(), told("a"));
        assert_eq!(read(&maps("cpu", None), "b").unwrap(), told("a"));
    }

    #[test]
    fn what_is_no_such_tuple_is_refused() {
        for other in [&b""[..], b"\x80\x04N.", b"\x80\x04)."] {
            assert!(read(other, "b").is_err());
        }
        let whole = write("worker0");
        for size in 0..whole.len() {
            assert!(read(&whole[..size], "b").is_err());
        }
    }
}
