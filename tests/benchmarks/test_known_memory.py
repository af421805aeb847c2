"""The predictions of `popgeo.memory` agree with measurements, and a step trains close to a limit of the system."""

import importlib.util
import os
import subprocess
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
def test_a_step_trains_at_98_percent_of_a_limit_and_not_at_70():
    runs = "known_memory.give_back_freed_memory(); known_memory.run_close_to_limits(2, 60_000_000, 70_000_000)"
    # A process of its own, since the memory that earlier tests have freed would serve runs beyond their limit.
    made = subprocess.run(
        [sys.executable, "-c", f"import torch, known_memory; torch.manual_seed(0); {runs}"],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'benchmarks'}{os.pathsep}{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "2 runs at 98% of a limit: 0 failed" in made.stdout
    assert "1 runs with 70% of the needed memory: 1 failed" in made.stdout
