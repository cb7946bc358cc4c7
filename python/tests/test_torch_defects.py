"""What PyTorch's own core gets wrong, farref gets right: the same programs (``torch_defects.py``) on both.

The numbers are those of the experiments that found the defects. Where PyTorch hangs, the program is ended after some
seconds; on farref it has as long as all tests, and hangs nowhere.
"""

import importlib.util
import json
import pathlib
import sys

import pytest
from testkit import TEST_TIMEOUT, started_program

PROGRAM = pathlib.Path(__file__).parent / "torch_defects.py"
# Seconds after which something hangs.
ON_PYTORCH, ON_FARREF = 5, TEST_TIMEOUT

WORKS, YES, NO = "works", "True", "False"
TIMEOUT = "RPC ran for more than set timeout"
NEVER_MADE = "RRef creation via rpc.remote() timed out"

# Experiment, question, what is in PyTorch's answer, and in farref's.
ANSWERS = [
    # A control message that is sent again is empty, and one that frees a value waits for threads that functions occupy.
    ("E1", "freed while its worker is busy", NO, YES),
    ("E1", "what was sent again arrives whole", NO, YES),
    ("E1", "freed at last", YES, YES),
    # A reference whose creation has timed out says that its owner knows of it.
    ("E2", "confirmed by an owner that has not heard of it", YES, NO),
    ("E2", "to_here() of timed-out reference 1", NEVER_MADE, NEVER_MADE),
    ("E2", "to_here() of timed-out reference 2", "", NEVER_MADE),  # PyTorch 1.13 says something else the second time
    # A killed worker hangs everybody's shutdown, and what it held stays for ever.
    ("E3", "a call under way", "raises", "PeerLost"),
    ("E3", "a new call", "raises", "PeerLost"),
    ("E3", "what it held is freed", NO, YES),
    ("E3", "shutdown()", "hangs", WORKS),
    # A result that nobody uses lets backward() fail.
    ("E4", "backward() with an unused result", TIMEOUT, WORKS),
    ("E4", "the gradients are right", NO, YES),
    # What a call returns after the end of its context is lost.
    ("E5", "the result of a call that outlives its context", "autograd context", WORKS),
    # A timeout below a millisecond is none.
    ("E7", "a call of half a second with a timeout of half a millisecond", WORKS, TIMEOUT),
    # References do not work in the second group of a process.
    ("E8", "a reference in a call of the second group", "no longer running", WORKS),
    ("E8", "dropped references are freed in the second group", NO, YES),
    ("E10", "train(False) reaches a remote module", NO, YES),
    # A legal name keeps others from joining.
    ("E11", "joining a worker with a dash in its name", "stoi", WORKS),
    # A member that has died without a word keeps all others from joining, for ever.
    ("E13", "joining after a member was killed", "raises", WORKS),
    ("E13", "joining under the name of the dead", "raises", WORKS),
    ("E13", "its calls arrive", None, YES),
]


def start(folder, patience, *options):
    folder.mkdir()
    return started_program(folder.name, [sys.executable, *options, PROGRAM, folder, patience])


def answers(folder, process):
    """What came out, by experiment and question."""
    process.succeeds()
    found = [json.loads(line) for line in (folder / "findings").read_text().splitlines()]
    return {(experiment, question): answer for experiment, question, answer in found}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The answers of PyTorch and of farref, and the folder with what farref's workers printed."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: farref.torch cannot be tried")
    folder = tmp_path_factory.mktemp("defects")
    folders = folder / "pytorch", folder / "farref"
    processes = start(folders[0], ON_PYTORCH), start(folders[1], ON_FARREF, "-m", "farref.torch")
    try:
        yield *map(answers, folders, processes), folders[1]
    finally:
        for process in processes:
            process.close()


def is_as_bad(answers, experiment, question, expected):
    """Whether PyTorch answers that. On a busy machine it may hang before."""
    hangs = "hangs" in [answer for (of, _), answer in answers.items() if of == experiment]
    answer = answers.get((experiment, question))
    return hangs if answer in (None, "hangs") else expected in answer


@pytest.mark.parametrize("experiment, question, pytorch, farref", ANSWERS, ids=lambda value: str(value).replace(" ", "-"))
def test_what_pytorch_gets_wrong_farref_gets_right(both, experiment, question, pytorch, farref):
    from_pytorch, from_farref, folder = both
    # Otherwise PyTorch has been mended, and this is no comparison any more.
    if pytorch is not None:
        assert is_as_bad(from_pytorch, experiment, question, pytorch), from_pytorch
    logs = [log.read_text() for log in sorted(folder.glob(f"{experiment}.*.log"))]
    assert farref in from_farref.get((experiment, question), "no answer"), logs


def test_every_answer_is_looked_at(both):
    assert set(both[1]) == {answer[:2] for answer in ANSWERS}
