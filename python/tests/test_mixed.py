"""Rust and Python workers in one group: `crates/farref-pickle/examples/mixed_worker` is the Rust one."""

import collections
import dataclasses

import farref
import pytest
from fork_server import fork_server
from testkit import TEST_TIMEOUT, Process, environment, rust_program, started_program


@dataclasses.dataclass
class Point:
    x: int
    y: float


@pytest.fixture
def group(tmp_path):
    """A Rust worker, a Python worker, and this one."""
    common = {"WORLD_SIZE": "3", "FARREF_RENDEZVOUS": f"file://{tmp_path}/store", "FARREF_INSECURE": "1"}

    def python(output, errors):
        variables = environment(**common, RANK="2", FARREF_NAME="python")
        serve = "import farref; farref.join().serve()"
        return fork_server("farref").start(output, errors, arguments=[], environment=variables, code=serve)

    rust = rust_program("farref-pickle", "example", "mixed_worker")
    others = [started_program("rust", [rust], **common, RANK="1", FARREF_NAME="rust"), Process("python", python)]
    try:
        with farref.join(
            name="me", rank=0, world_size=3, rendezvous=common["FARREF_RENDEZVOUS"], insecure=True, call_timeout=TEST_TIMEOUT
        ) as me:
            yield me
        for other in others:
            other.succeeds()
    finally:
        for other in others:
            other.close()


def test_python_calls_rust_functions_by_their_python_names(group):
    rust = group.peer("rust", wait=TEST_TIMEOUT)
    assert rust.call("maths.double", 21) == 42
    assert rust.call("maths.power", 3) == 9
    assert rust.call("maths.power", base=2, exponent=5) == 32
    assert rust.call("tools.nothing") is None
    assert rust.call("tools.longest", "a", "abc", "ab") == "abc"
    assert [call.result() for call in [rust.start("maths.double", number) for number in range(50)]] == list(range(0, 100, 2))


def test_plain_data_crosses_both_ways_as_what_it_is(group):
    rust = group.peer("rust", wait=TEST_TIMEOUT)
    for value in [
        None, True, -1, 2**62, 1.5, "far \u2603", b"\0\xff", [1, [2, None]], (1, "two"), {1, 2}, {"a": [1], 2: ()},
        b"x" * 100_000, "y" * 100_000, list(range(10_000)),
    ]:
        assert rust.call("tools.echo", value) == value
    assert rust.call("tools.echo", bytearray(b"abc")) == b"abc"
    mirrored = rust.call("tools.mirrored", [Point(1, 0.5), {"x": 2, "y": 1}])
    assert mirrored == {"1": {"x": -1, "y": 0.5}, "2": {"x": -2, "y": 1.0}}


def test_buffers_cross_both_ways(group):
    rust = group.peer("rust", wait=TEST_TIMEOUT)
    for size in [10, 100_000]:
        assert rust.call("tools.sum_bytes", b"\1" * size) == size
        assert rust.call("tools.sum_bytes", bytearray(b"\1" * size)) == size
        assert len(memoryview(rust.call("tools.numbers", size)).cast("B")) == 8 * size
    assert memoryview(rust.call("tools.numbers", 1000)).cast("B").cast("d")[999] == 999.0
    numpy = pytest.importorskip("numpy")
    for size in [10, 100_000]:
        assert rust.call("tools.sum_bytes", numpy.ones(size, dtype=numpy.uint8)) == size


def test_rust_errors_arrive_with_their_text_and_the_class_that_they_name(group):
    rust = group.peer("rust", wait=TEST_TIMEOUT)
    with pytest.raises(farref.RemoteError, match="no such luck"):
        rust.call("tools.fail", "no such luck")
    with pytest.raises(ValueError, match="math domain error"):
        rust.call("maths.root", -1)
    with pytest.raises(farref.Mismatch, match="maths.triple"):
        rust.call("maths.triple", 1)
    with pytest.raises(farref.CannotBeSent, match="the function takes 1 arguments"):
        rust.call("maths.double", 1, 2)
    with pytest.raises(farref.CannotBeSent):
        rust.call("maths.double", Point(1, 2))


def test_rust_values_behind_references_are_what_they_are_to_both(group):
    rust = group.peer("rust", wait=TEST_TIMEOUT)
    counter = rust.remote("shop.Counter", start=5)
    assert counter.call.add(1, 2) == 8
    assert counter.start.get().result() == 8
    assert counter.to_here() == 8
    # Rust gets its own value back, and knows its type.
    assert rust.call("shop.add_twice", counter, 10) == 28
    assert counter.remote.get().to_here() == 28
    with pytest.raises(farref.Mismatch):
        counter.call.no_such_method()
    # A third worker may have it.
    python = group.peer("python", wait=TEST_TIMEOUT)
    assert python.call(farref.RRef.to_here, counter) == 28
    till = group.lookup("till", timeout=TEST_TIMEOUT)
    assert till.call.get() == 100


def test_rust_uses_objects_that_live_in_python(group):
    rust, python = group.peer("rust", wait=TEST_TIMEOUT), group.peer("python", wait=TEST_TIMEOUT)
    for owner in [python, group.me]:
        words = owner.remote(collections.Counter, "abracadabra")
        count, all_words = rust.call("shop.count_words", words, "aaa")
        assert count == 8 and all_words == {"a": 8, "b": 2, "r": 2, "c": 1, "d": 1}
    del words, owner


def test_rust_calls_python_and_sees_its_exceptions(group):
    rust, python = group.peer("rust", wait=TEST_TIMEOUT), group.peer("python", wait=TEST_TIMEOUT)
    assert rust.call("tools.name_of", python) == "python"
    for peer in [python, group.me]:
        found = rust.call("tools.visit", peer)
        assert found.pop("raised") in ["ValueError: math domain error", "ValueError: expected a nonnegative input, got -1.0"]
        assert found == {"root": 1.5, "traceback": True, "most": [("a", 5)], "large": 100_000}


def test_a_name_reaches_python_functions_as_well(group):
    python = group.peer("python", wait=TEST_TIMEOUT)
    assert python.call("math.gcd", 12, 18) == 6
    assert python.call("len", "four") == 4
    assert python.remote("collections.OrderedDict", a=1).to_here() == {"a": 1}
    with pytest.raises(farref.Mismatch, match="`python` does not have"):
        python.call("no_such_module.function")
    with pytest.raises(farref.Mismatch, match="`python` does not have"):
        python.call("math.no_such_function")


# What elements are called by torch, by numpy if it has them, and by candle.
ELEMENTS = [
    ("float32", "F32"), ("float64", "F64"), ("float16", "F16"), ("bfloat16", "BF16"), ("int64", "I64"), ("int32", "I32"),
    ("int16", "I16"), ("uint8", "U8"),
]
SHAPES = [(), (0,), (3,), (2, 0, 5), (7, 11), (40, 50), (3, 20, 100)]


def test_tensors_of_torch_cross_both_ways(group):
    torch = pytest.importorskip("torch")
    rust = group.peer("rust", wait=TEST_TIMEOUT)
    for name, candle in ELEMENTS:
        dtype = getattr(torch, name)
        for shape in SHAPES:
            sent = (torch.arange(torch.Size(shape).numel()) % 100).reshape(shape).to(dtype)
            described = rust.call("tensors.describe", sent)
            assert described == (candle, list(shape), False, sent.to(torch.float64).sum().item())
            back = rust.call("tensors.echo", sent)
            assert type(back) is torch.Tensor and back.dtype == dtype and torch.equal(back, sent)
        made = rust.call("tensors.made", candle.lower(), 3, 2)
        assert made.dtype == dtype and made.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert rust.call("tensors.describe", torch.tensor([True, False, True])) == ("U8", [3], False, 2.0)


def test_tensors_are_contiguous_and_writable_where_they_arrive(group):
    torch = pytest.importorskip("torch")
    rust = group.peer("rust", wait=TEST_TIMEOUT)
    whole = torch.arange(60_000.0).reshape(200, 300)
    for sent in [whole.t(), whole[::3, ::7], whole[5], whole.expand(2, 200, 300), torch.ones(3).expand(4, 3)]:
        back = rust.call("tensors.echo", sent)
        assert torch.equal(back, sent) and back.is_contiguous()
        back += 1
        assert torch.equal(back, sent + 1)


def test_a_tensor_that_needs_gradients_crosses_as_data_and_not_at_all_inside_of_a_context(group):
    torch = pytest.importorskip("torch")
    rust, python = group.peer("rust", wait=TEST_TIMEOUT), group.peer("python", wait=TEST_TIMEOUT)
    weights = torch.nn.Linear(3, 2).weight
    assert rust.call("tensors.describe", weights)[:3] == ("F32", [2, 3], False)
    assert not rust.call("tensors.parameter").requires_grad
    assert python.call("operator.neg", weights.detach().requires_grad_()).requires_grad
    with farref.context(group):
        assert rust.call("tensors.describe", weights.detach())[:3] == ("F32", [2, 3], False)
        with pytest.raises(farref.CannotBeSent, match="contexts do not cross languages"):
            rust.call("tensors.describe", weights)
        with pytest.raises(farref.Error, match="contexts do not cross languages"):
            rust.call("tensors.parameter")
    for peer in [python, group.me]:
        added, refused = rust.call("tensors.visit", peer)
        assert added.tolist() == [2, 2, 2] and "contexts do not cross languages" in refused


def test_arrays_of_numpy_are_tensors_and_vectors_in_rust(group):
    numpy = pytest.importorskip("numpy")
    rust = group.peer("rust", wait=TEST_TIMEOUT)
    for name, candle in ELEMENTS:
        if name == "bfloat16":
            continue
        for shape in SHAPES:
            sent = (numpy.arange(int(numpy.prod(shape))) % 100).reshape(shape).astype(name)
            assert rust.call("tensors.describe", sent) == (candle, list(shape), False, float(sent.astype(float).sum()))
            back = numpy.asarray(rust.call("tensors.echo", sent).tolist()).reshape(shape)
            assert (back == sent).all()
            if len(shape) == 1:
                assert rust.call("tensors.sum", sent) == sent.sum()
    whole = numpy.arange(60_000, dtype=numpy.float32).reshape(200, 300)
    for sent in [whole.T, whole[::3, ::7], whole.reshape(20, 30, 100).transpose(2, 0, 1), numpy.asfortranarray(whole)]:
        back = rust.call("tensors.echo", sent)
        assert (numpy.asarray(back) == sent).all()
    assert rust.call("tensors.sums", whole.T) == whole.T.sum(axis=1).tolist()
    assert rust.call("tensors.sums", numpy.zeros((3, 0))) == [0, 0, 0]
    # Numbers of numpy's are numbers, and so is an array of none dimensions.
    assert rust.call("tensors.twice", numpy.float32(1.5), numpy.int64(21)) == (3.0, 42)
    assert rust.call("tensors.twice", numpy.array(1.5), numpy.uint8(21)) == (3.0, 42)
    assert rust.call("tools.echo", [numpy.float64(2.5), numpy.bool_(True)]) == [2.5, True]


def test_one_tensor_may_be_in_a_value_more_than_once(group):
    numpy = pytest.importorskip("numpy")
    rust = group.peer("rust", wait=TEST_TIMEOUT)
    for size in [3, 10_000]:
        one, other = numpy.full(size, 1.5), numpy.full(size, 2.5)
        pair = ("one", one)
        back = rust.call("tensors.echo_all", [pair, ("two", other), ("none", None), ("three", one), pair])
        assert [name for name, _ in back] == ["one", "two", "none", "three", "one"]
        assert [None if it is None else float(it.sum()) / size for _, it in back] == [1.5, 2.5, None, 1.5, 1.5]


def test_what_is_no_tensor_is_refused_with_a_reason(group):
    numpy = pytest.importorskip("numpy")
    rust = group.peer("rust", wait=TEST_TIMEOUT)
    for wrong, why in [
        (numpy.zeros(3, dtype=numpy.complex64), "complex64 has no counterpart"),
        (numpy.zeros(3, dtype=">f4"), "expected a tensor"),
        (numpy.array(["text"]), "expected a tensor"),
        ([1.0, 2.0], "expected a tensor"),
        (b"bytes", "expected a tensor"),
    ]:
        with pytest.raises(farref.CannotBeSent, match=why):
            rust.call("tensors.describe", wrong)
    with pytest.raises(farref.CannotBeSent):
        rust.call("tensors.sum", numpy.zeros((2, 2)))
    assert rust.call("maths.double", 1) == 2
