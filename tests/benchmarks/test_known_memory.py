"""The predictions of `popgeo.memory` agree with measurements, and a step trains close to a limit of the system."""

import importlib.util
import sys

import pytest
import torch

from tests.conftest import REPOSITORY


@pytest.fixture(scope="module")
def known_memory():
    folder = REPOSITORY / "benchmarks"
    specification = importlib.util.spec_from_file_location("known_memory", folder / "known_memory.py")
    script = importlib.util.module_from_spec(specification)
    sys.path.insert(0, str(folder))
    sys.modules["known_memory"] = script
    try:
        specification.loader.exec_module(script)
        yield script
    finally:
        sys.path.remove(str(folder))
        del sys.modules["known_memory"]


@pytest.mark.parametrize("name", ["GIN, training", "SchNet, training on forces", "PaiNN, forces", "SchNet, prediction"])
def test_a_prediction_agrees_with_the_memory_that_torch_is_asked_for(known_memory, name, capfd):
    torch.manual_seed(0)
    worst = known_memory.compare({name: known_memory.CASES[name]}, [100])
    assert worst["compiled"] < known_memory.GOALS["compiled"]
    assert worst["eager"] < known_memory.GOALS["eager"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_step_trains_at_98_percent_of_a_limit_and_not_at_70(known_memory, capfd):
    torch.manual_seed(0)
    known_memory.give_back_freed_memory()
    assert known_memory.run_close_to_limits(2, 60_000_000, 70_000_000) == 0
    assert "1 runs with 70% of the needed memory: 1 failed" in capfd.readouterr().out
