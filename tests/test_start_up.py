"""A process imports only the packages that its task needs."""

import importlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import popgeo
from popgeo.nn import GIN
from tests.conftest import REPOSITORY

HEAVY = "torch torch_geometric torch._dynamo sympy pandas scipy matplotlib"


def imported_by(*programs: str) -> list[set[str]]:
    """Run programs in turn in a new process; return the heavy packages that are imported after each."""
    ends = f"\nimport sys\nprint('imported', *(name for name in {HEAVY.split()} if name in sys.modules))\n"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    code = "".join(program + ends for program in programs)
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = (line.split() for line in run.stdout.splitlines())
    return [{*line[1:]} for line in lines if line[:1] == ["imported"]]


def seconds_of(run: Callable[[], object]) -> float:
    """Return the processor time (s), user and system, of the processes that a call starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(("argument", "status"), [("--version", 0), ("--help", 0), ("convrt", 2)])
def test_the_command_answers_within_half_a_second(argument: str, status: int):
    def answer() -> None:
        run = subprocess.run([sys.executable, "-m", "popgeo", argument], cwd=REPOSITORY, capture_output=True)
        assert run.returncode == status

    assert any(seconds_of(answer) < 0.5 for _ in range(3))  # the first of three, on a busy machine


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a small model; return its file."""
    graphs = [Data(x=torch.ones(n, 4), edge_index=torch.tensor([[0], [1]])) for n in (2, 9, 5)]
    sizes = popgeo.FixedSizeOptions(num_nodes=32, num_edges=8, num_graphs=4)
    path = tmp_path_factory.mktemp("exported") / "gin.pt2"
    return popgeo.export(GIN(4, 8, 2, out_channels=1, readout="sum"), sizes, path, graphs=graphs)


FUNCTIONS_OF_TENSORS = """
import torch, numpy as np, popgeo
assert popgeo.ops.scatter_add(torch.ones(2, 1), torch.tensor([0, 0]), 0, dim_size=1).item() == 2
sizes = popgeo.FixedSizeOptions(num_nodes=12, num_edges=0, num_graphs=4)
assert len(list(popgeo.FixedSizeBatchSampler(np.array([3, 4, 5, 6]), fixed_size_options=sizes))) == 2
budget = popgeo.packing.Budget(sizes=(11,), num_graphs=3)
assert len(popgeo.packing.window(np.array([[3], [4], [5], [6]]), budget)) == 2
graph = popgeo.sampling.CompressedGraph.from_edge_index(torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
sample = popgeo.sampling.sample_neighbors(graph, torch.tensor([2]), [1, 1], subgraph_type="induced")
assert sorted(sample.node.tolist()) == [0, 1, 2]
"""
RUN_A_FILE = """
import torch, popgeo
program = popgeo.load({path!r}, {backend!r}).programs[0]
program.run(*(torch.zeros(like.shape, dtype=like.dtype) for like in program.inputs.values()))
"""


@pytest.fixture(scope="module")
def imported(exported: Path) -> list[set[str]]:
    """Run four programs in turn in one process; return the packages that are imported after each."""
    interpreted, compiled = (RUN_A_FILE.format(path=str(exported), backend=backend) for backend in ("none", "cpu"))
    return imported_by("import popgeo", FUNCTIONS_OF_TENSORS, interpreted, compiled)


def test_importing_popgeo_imports_nothing_else(imported: list[set[str]]):
    assert imported[0] == set()


def test_functions_of_tensors_packing_and_samplers_of_arrays_need_torch_alone(imported: list[set[str]]):
    assert imported[1] == {"torch"}


def test_a_file_runs_with_torch_alone(imported: list[set[str]]):
    assert imported[2] == {"torch"}
    assert "torch_geometric" not in imported[3]


@pytest.mark.parametrize("package", ["data", "deploy", "loader", "nn"])
def test_a_package_with_lazy_names_shows_and_gives_all_of_them(package: str):
    module = importlib.import_module(f"popgeo.{package}")
    assert module.__all__
    assert {*module.__all__} <= {*dir(module)}
    for name in module.__all__:
        assert getattr(module, name).__module__.startswith(f"popgeo.{package}.")
    with pytest.raises(AttributeError, match=f"'popgeo.{package}' has no attribute 'no_such_name'"):
        module.no_such_name  # noqa: B018


def test_the_numbers_of_types_in_a_file_are_those_of_torch():
    from torch._export.serde import serialize

    from popgeo.deploy.read_torch_program import DTYPES, MEMORY_FORMATS

    known = {int(number): dtype for number, dtype in serialize._SERIALIZE_TO_TORCH_DTYPE.items()}
    assert known == {number: dtype for number, dtype in DTYPES.items() if number in known}  # older torch has fewer
    formats = {int(number): form for number, form in serialize._SERIALIZE_TO_TORCH_MEMORY_FORMAT.items()}
    assert formats == MEMORY_FORMATS
