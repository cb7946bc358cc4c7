"""Rust and Python workers in one group: `crates/farref-pickle/examples/mixed_worker.rs` is the Rust one."""

import collections
import dataclasses
import os
import pathlib
import subprocess
import sys

import farref
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Point:
    x: int
    y: float


@pytest.fixture(scope="module")
def rust_program():
    """The Rust worker, built if it has not been (`cargo test --workspace` builds it, too)."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target / "debug" / "examples" / "mixed_worker"
    if not program.exists():
        build = ["cargo", "build", "-p", "farref-pickle", "--example", "mixed_worker"]
        subprocess.run(build, cwd=ROOT, check=True)
    return str(program.resolve())


@pytest.fixture
def group(rust_program, tmp_path):
    """A Rust worker, a Python worker, and this one."""
    common = {"WORLD_SIZE": "3", "FARREF_RENDEZVOUS": f"file://{tmp_path}/store", "FARREF_INSECURE": "1"}
    serve = "import farref; farref.join().serve()"
    environment = {**os.environ, **common, "PYTHONPATH": os.pathsep.join(sys.path)}
    others = [
        subprocess.Popen([rust_program], env={**environment, "RANK": "1", "FARREF_NAME": "rust"}),
        subprocess.Popen([sys.executable, "-c", serve], env={**environment, "RANK": "2", "FARREF_NAME": "python"}),
    ]
    try:
        with farref.join(
            name="me", rank=0, world_size=3, rendezvous=common["FARREF_RENDEZVOUS"], insecure=True, call_timeout=60
        ) as me:
            yield me
        assert [other.wait(timeout=60) for other in others] == [0, 0]
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_python_calls_rust_functions_by_their_python_names(group):
    rust = group.peer("rust", wait=60)
    assert rust.call("maths.double", 21) == 42
    assert rust.call("maths.power", 3) == 9
    assert rust.call("maths.power", base=2, exponent=5) == 32
    assert rust.call("tools.nothing") is None
    assert rust.call("tools.longest", "a", "abc", "ab") == "abc"
    assert [call.result() for call in [rust.start("maths.double", number) for number in range(50)]] == list(range(0, 100, 2))


def test_plain_data_crosses_both_ways_as_what_it_is(group):
    rust = group.peer("rust", wait=60)
    for value in [
        None, True, -1, 2**62, 1.5, "far \u2603", b"\0\xff", [1, [2, None]], (1, "two"), {1, 2}, {"a": [1], 2: ()},
        b"x" * 100_000, "y" * 100_000, list(range(10_000)),
    ]:
        assert rust.call("tools.echo", value) == value
    assert rust.call("tools.echo", bytearray(b"abc")) == b"abc"
    mirrored = rust.call("tools.mirrored", [Point(1, 0.5), {"x": 2, "y": 1}])
    assert mirrored == {"1": {"x": -1, "y": 0.5}, "2": {"x": -2, "y": 1.0}}


def test_buffers_cross_both_ways(group):
    rust = group.peer("rust", wait=60)
    for size in [10, 100_000]:
        assert rust.call("tools.sum_bytes", b"\1" * size) == size
        assert rust.call("tools.sum_bytes", bytearray(b"\1" * size)) == size
        assert len(memoryview(rust.call("tools.numbers", size)).cast("B")) == 8 * size
    assert memoryview(rust.call("tools.numbers", 1000)).cast("B").cast("d")[999] == 999.0
    numpy = pytest.importorskip("numpy")
    for size in [10, 100_000]:
        assert rust.call("tools.sum_bytes", numpy.ones(size, dtype=numpy.uint8)) == size


def test_rust_errors_arrive_with_their_text_and_the_class_that_they_name(group):
    rust = group.peer("rust", wait=60)
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
    rust = group.peer("rust", wait=60)
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
    python = group.peer("python", wait=60)
    assert python.call(farref.RRef.to_here, counter) == 28
    till = group.lookup("till", timeout=60)
    assert till.call.get() == 100


def test_rust_uses_objects_that_live_in_python(group):
    rust, python = group.peer("rust", wait=60), group.peer("python", wait=60)
    for owner in [python, group.me]:
        words = owner.remote(collections.Counter, "abracadabra")
        count, all_words = rust.call("shop.count_words", words, "aaa")
        assert count == 8 and all_words == {"a": 8, "b": 2, "r": 2, "c": 1, "d": 1}
    del words, owner


def test_rust_calls_python_and_sees_its_exceptions(group):
    rust, python = group.peer("rust", wait=60), group.peer("python", wait=60)
    assert rust.call("tools.name_of", python) == "python"
    for peer in [python, group.me]:
        found = rust.call("tools.visit", peer)
        assert found.pop("raised") in ["ValueError: math domain error", "ValueError: expected a nonnegative input, got -1.0"]
        assert found == {"root": 1.5, "traceback": True, "most": [("a", 5)], "large": 100_000}


def test_a_name_reaches_python_functions_as_well(group):
    python = group.peer("python", wait=60)
    assert python.call("math.gcd", 12, 18) == 6
    assert python.call("len", "four") == 4
    assert python.remote("collections.OrderedDict", a=1).to_here() == {"a": 1}
    with pytest.raises(ModuleNotFoundError):
        python.call("no_such_module.function")
    with pytest.raises(AttributeError):
        python.call("math.no_such_function")
