"""The benchmark of the training guide trains every arrangement with its stated sizes."""

import importlib.util
import math
import re
import sys

from popgeo.datasets import Molecules
from tests.conftest import REPOSITORY


def test_every_arrangement_trains_on_as_many_graphs_as_it_says(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    path = REPOSITORY / "benchmarks" / "training_arrangements.py"
    specification = importlib.util.spec_from_file_location("training_arrangements", path)
    script = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "training_arrangements", script)
    specification.loader.exec_module(script)
    table = script.compare(list(Molecules()[:300]), updates=8, seeds=2)
    assert table["batches"].tolist() == [arrangement.name for arrangement in script.ARRANGEMENTS]
    for arrangement, counts, error in zip(
        script.ARRANGEMENTS, table["graphs per batch"], table.iloc[:, 2], strict=True
    ):
        mean = float(re.match(r"[\d.]+", counts)[0])
        assert math.isclose(mean, arrangement.graphs, rel_tol=0.15), arrangement.name
        assert 0 < float(re.match(r"[\d.]+", error)[0]) < 10
