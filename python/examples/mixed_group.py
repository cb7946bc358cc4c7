"""A mixed group: a Rust worker searches vectors, and Python workers make them.

    cargo build -p farref-pickle --example mixed_group
    python python/examples/mixed_group.py

The Rust worker is `mixed_group.rs`, beside this file; Python calls its functions and methods by the names that they have there,
and it calls `vectors` of the Python workers by its own. Vectors are arrays of numpy's here and tensors of candle's there. They
travel beside their messages, without copies in either process.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import farref
import numpy

DIMENSIONS = 64
ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "debug/examples/mixed_group")


def vectors(batch):
    """A batch of vectors: the Rust worker calls this on whoever is to make them."""
    rows = numpy.random.default_rng(batch).standard_normal((1000, DIMENSIONS), dtype=numpy.float32)
    return rows / numpy.linalg.norm(rows, axis=1, keepdims=True)


def search(me):
    rust, python = me.peer("rust", wait=60), me.peer("python", wait=60)
    index = rust.remote("search.Index", DIMENSIONS)  # a Rust value, which stays there
    count = rust.call("search.fill", index, [python, me.me], 6)
    print(f"the index has {count} vectors")

    wanted = vectors(4)[321]
    place, likeness = index.call.nearest(wanted)  # a tensor of torch's, where that is installed
    print(f"number {place} of {len(likeness)} is the nearest: {float(likeness[place]):.3f}")
    assert (count, place) == (6000, 4321) and abs(float(likeness[place]) - 1) < 1e-3

    try:
        index.call.add(numpy.zeros((2, 3), dtype=numpy.float32))
    except ValueError as error:  # the Rust function says of which class its error is
        print(f"not taken: {error}")


def main():
    if len(sys.argv) > 1:  # the other Python worker, by the environment
        farref.join().serve()
        return
    if not PROGRAM.exists():
        sys.exit(f"there is no {PROGRAM}: cargo build -p farref-pickle --example mixed_group")
    with tempfile.TemporaryDirectory() as folder:
        place = f"file://{folder}/store"
        shared = {**os.environ, "FARREF_RENDEZVOUS": place, "WORLD_SIZE": "3", "FARREF_INSECURE": "1"}
        others = [
            subprocess.Popen(command, env={**shared, "RANK": str(rank), "FARREF_NAME": name})
            for rank, (name, command) in enumerate(
                [("rust", [PROGRAM]), ("python", [sys.executable, __file__, "serve"])], start=1
            )
        ]
        try:
            with farref.join(name="me", rank=0, world_size=3, rendezvous=place, insecure=True) as me:
                search(me)
            print("all have ended:", [other.wait(timeout=60) for other in others])
        finally:
            for other in others:
                other.kill()
                other.wait()


if __name__ == "__main__":
    main()
