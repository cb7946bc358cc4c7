"""The benchmark runs, and measures what it says."""

import json
import subprocess
import sys

from farref import bench
from processes import environment


def test_the_benchmark_has_a_figure_for_each_measure():
    command = [sys.executable, "-m", "farref.bench", "--rounds", "20", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment())
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(ran.stdout.splitlines()[-1])
    measured = [name for name, _, _ in bench.MEASURES]
    # Arrays need numpy, and autograd needs torch.
    assert set(measured[:4]) <= set(figures["farref"]) <= set(measured[:5])
    assert all(set(figures[who]) == set(measured) for who in set(figures) - {"farref"})
    assert all(figure > 0 for who in figures.values() for figure in who.values())
