"""Tensors that are views of larger memory: what of it travels."""

# A view is copied before it is sent if so many bytes of others would come along.
_SPARED = 8192


def dense(tensor):
    """A plain tensor of the same elements, which is most of the memory that it spans; and how many elements it spans."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if 0 in tensor.size():
        return tensor, 0
    extent, count = _extent(tensor), tensor.numel()
    if (extent - count) * tensor.element_size() >= _SPARED and extent >= 2 * count:
        return tensor.contiguous(), count
    return tensor, extent


def span(tensor):
    """All that a dense tensor spans, as elements in a row."""
    return tensor.as_strided((_extent(tensor),), (1,), tensor.storage_offset())


def _extent(tensor):
    return 1 + sum((length - 1) * step for length, step in zip(tensor.size(), tensor.stride()))
