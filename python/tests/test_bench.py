"""The benchmark runs, and measures what it says."""

import json
import sys

from farref import bench
from testkit import run


def test_the_benchmark_has_a_figure_for_each_measure():
    command = [sys.executable, "-m", "farref.bench", "--rounds", "20", "--turns", "2", "--json"]
    turns = json.loads(run(command).splitlines()[-1])
    assert len(turns) == 2
    on_a_gpu = {name for name, _, _ in bench.ON_A_GPU}
    measured = [name for name, _, _ in bench.MEASURES]
    for figures in turns:
        # All of these, where there is a GPU.
        assert all(set(of) & on_a_gpu in (set(), on_a_gpu) for of in figures.values())
        figures = {who: {name: of[name] for name in of if name not in on_a_gpu} for who, of in figures.items()}
        # Arrays need numpy, and autograd needs torch.
        assert set(measured[:4]) <= set(figures["farref"]) <= set(measured[:5])
        assert all(set(figures[who]) == set(measured) for who in set(figures) - {"farref"})
        assert all(figure > 0 for who in figures.values() for figure in who.values())


def test_figures_and_ratios_are_medians_of_the_turns():
    turns = [
        {"torch": {"empty call": 100.0}, "farref": {"empty call": 20.0}},
        {"torch": {"empty call": 300.0}, "farref": {"empty call": 30.0}},
        {"torch": {"empty call": 100.0}, "farref": {"empty call": 90.0}},
    ]
    assert bench._figure(turns, "farref", "empty call") == "30.0"
    assert bench._ratio(turns, "farref", "empty call") == "0.20"
    assert bench._figure(turns, "farref.torch", "empty call") == "-"
    assert bench._ratio([{"farref": {"empty call": 1.0}}], "farref", "empty call") == "-"
