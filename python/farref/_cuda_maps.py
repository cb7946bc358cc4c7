"""On which device tensors arrive, in programs of farref's own; and how those travel that are on CUDA devices."""

from ._cuda import arrived, described
from ._errors import CannotBeSent, NotMember

_maps = {}


def map_devices(peer: str, devices: dict) -> None:
    """Says where tensors of this worker's CUDA devices arrive on the worker of that name, from now on.

    ``devices``: for a device here (a number, ``"cuda:1"``, a ``torch.device``) the device there, or ``"cpu"``. What that worker sends back
    from those devices arrives on these. Devices that are not named arrive on the one with the same number.

    >>> import farref
    >>> farref.map_devices("evaluator", {0: 1, 1: "cpu"})
    """
    known = {_number(here): _number(there) for here, there in devices.items()}
    if None in known:
        raise ValueError("tensors on the CPU arrive on the CPU: name a CUDA device, such as 0 or \"cuda:0\"")
    there = [device for device in known.values() if device is not None]
    if len(set(there)) != len(there):
        raise ValueError(f"two devices would arrive on one of {peer!r}: what comes back would not know where to go: {devices}")
    global _maps
    # Others look at it meanwhile.
    _maps = {**_maps, peer: known}


def _number(device):
    """The number of a CUDA device; None: the CPU."""
    text = str(device)
    if text == "cpu":
        return None
    number = text.removeprefix("cuda:") if text != "cuda" else "0"
    if not number.isdecimal():
        raise ValueError(f"{device!r} is no device: give a number, \"cuda:0\" or \"cpu\"")
    return int(number)


def reduced(given):
    """A tensor of a CUDA device, for a pickle of farref's own."""
    from ._worker import worker

    try:
        sender = worker()
    except NotMember:
        sender = None
    source = given.device.index
    told = {peer: known[source] for peer, known in _maps.items() if source in known}
    name = None if sender is None else sender.name
    return tensor, (*described(given, sender), source, name, told, given.requires_grad)


def tensor(elements, dtype, size, stride, source, sender, told, requires_grad):
    """A tensor that came, in a program of farref's own: most often it is in its sender's memory."""
    import torch

    target = _target(source, sender, told, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    made = arrived(elements, dtype, size, stride, target)
    return made.requires_grad_() if requires_grad else made


def _target(source, sender, told, count):
    from ._worker import worker

    try:
        me = worker().name
    except NotMember:
        me = None
    if me in told:
        target = told[me]
    else:
        back = {there: here for here, there in _maps.get(sender, {}).items()}
        target = back.get(source, source)
    if target is not None and target >= count:
        raise CannotBeSent(
            f"a tensor on cuda:{source} of {sender!r} was to arrive on cuda:{target} of {me!r}, which has {count} CUDA devices: "
            f"say on {sender!r} where it is to arrive, with farref.map_devices({me!r}, {{{source}: ..}}), on a device of {me!r} or on \"cpu\""
        )
    return target
