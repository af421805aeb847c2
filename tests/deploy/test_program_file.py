"""What a user of an exported file may rely on: the model's own numbers, from a file that says when it is not whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch_geometric.data import Data

import popgeo
from popgeo.data import FixedSizeOptions
from popgeo.nn import SchNet

SIZES = FixedSizeOptions(num_nodes=24, num_edges=50, num_graphs=4)


def graph_of(num_nodes: int, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(1000 * num_nodes + seed)
    edges = torch.randint(0, num_nodes, (2, 2 * num_nodes), generator=generator)
    z = torch.randint(1, 9, (num_nodes,), generator=generator)
    pos = 2 * torch.randn(num_nodes, 3, generator=generator)
    return Data(x=torch.randn(num_nodes, 4, generator=generator), z=z, pos=pos, edge_index=edges)


GRAPHS = [graph_of(3 + 7 * i % 11, seed=i) for i in range(12)]


@pytest.fixture(scope="module")
def potential() -> SchNet:
    torch.manual_seed(0)
    return SchNet(8, 8, 1, num_gaussians=8)


def missing(*packages: str) -> str | None:
    for package in packages:
        try:
            __import__(package)
        except ImportError:
            return f"{package} is not installed"
    return None


ONNX = pytest.mark.skipif(bool(missing("onnxruntime", "onnxscript")), reason="onnxruntime or onnxscript is missing")


@pytest.fixture(scope="module", params=["torch", pytest.param("onnx", marks=ONNX)])
def file(request, potential, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("files") / f"potential.{request.param}"
    units = {"energy": "eV", "pos": "A"}
    return popgeo.export(potential, SIZES, path, request.param, graphs=GRAPHS[:2], forces=True, units=units)


def test_a_file_gives_the_energies_and_forces_of_the_model_for_graphs_it_has_not_seen(file, potential):
    wanted = popgeo.Predictor(potential, SIZES, "none", forces=True)(GRAPHS)
    found = popgeo.load(file)(GRAPHS)
    assert_close(dict(found), dict(wanted), atol=1e-5, rtol=1e-5)


def test_a_file_of_torch_runs_in_plain_torch(potential, tmp_path):
    path = popgeo.export(potential, SIZES, tmp_path / "potential.pt2", graphs=GRAPHS[:2])
    code = (
        "import sys, torch; program = torch.export.load(sys.argv[1]); "
        "print(*(tuple(one.shape) for one in program.module()(*program.example_inputs[0]))); "
        "assert 'popgeo' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": ""}
    made = subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=environment, capture_output=True)
    assert made.stdout.decode().split("\n")[0] == "(4, 1)"


@pytest.mark.parametrize("change", ["truncated", "flipped", "empty"])
def test_a_file_that_is_not_whole_is_refused(file, change, tmp_path):
    data = file.read_bytes()
    wrong = {"truncated": data[:-500], "flipped": data[:900] + bytes([data[900] ^ 1]) + data[901:], "empty": b""}
    path = tmp_path / file.name
    path.write_bytes(wrong[change])
    with pytest.raises(ValueError, match="truncated or changed"):
        popgeo.load(path)


def test_other_graphs_than_those_of_the_file_are_refused_by_number(file):
    wide = graph_of(5)
    wide.pos = wide.pos.double()
    with pytest.raises(ValueError, match=r"[Gg]raph 1.*float64"):
        popgeo.load(file)([graph_of(5), wide])
    with pytest.raises(ValueError, match="larger than the file's largest shape"):
        popgeo.load(file)([graph_of(60)])
