"""Exported files of every format compute energies, forces and stress of crystals, slabs and molecules."""

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from popgeo import FixedSizeOptions, Predictor, export, load
from popgeo.capture.safe_operations import safe_operation
from popgeo.convert.atoms import with_pairs
from popgeo.deploy.force_field import ForceField
from popgeo.nn import PaiNN, SchNet

pytest.importorskip("vesin", reason="vesin, which lists neighbors in a cell, is not installed")
REFERENCES = torch.zeros(100)
MODELS = {
    "SchNet": lambda: SchNet(8, 8, 1, 8, cutoff=4.0),
    "PaiNN": lambda: PaiNN(8, 1, 6, 4.0),
    "ForceField": lambda: ForceField("painn", {"hidden_channels": 8, "num_interactions": 1, "cutoff": 4.0}, REFERENCES),
}
KINDS = {
    "crystals": [(True, True, True)] * 2,
    "slabs": [(True, True, False)] * 2,
    "molecules": [None] * 2,
    "crystals and slabs": [(True, True, True), (True, True, False)],
}


def structure(num_atoms: int, pbc: tuple[bool, bool, bool] | None) -> Data:
    draw = {"generator": torch.Generator().manual_seed(num_atoms), "dtype": torch.float64}
    one = Data(z=torch.arange(num_atoms) % 8 + 1, pos=5 * torch.rand(num_atoms, 3, **draw))
    if pbc is not None:
        one.cell = (5 * torch.eye(3, dtype=torch.float64) + 0.3 * torch.rand(3, 3, **draw)).unsqueeze(0)
        one.pbc = torch.tensor([pbc])
    return with_pairs(one, 4.0).apply(lambda part: part.float() if part.is_floating_point() else part)


def compare(path: Path, format: str, model: str, kind: str) -> None:
    graphs = [structure(n, pbc) for n, pbc in zip((4, 6), KINDS[kind], strict=True)]
    edges = sum(one.edge_index.shape[1] for one in graphs)
    sizes = FixedSizeOptions(num_nodes=16, num_edges=edges + 8, num_graphs=3)
    torch.manual_seed(0)
    made = MODELS[model]()
    export(made, sizes, path, format, graphs=graphs, forces=True)
    expected = Predictor(made, sizes, "none", forces=True)(graphs)
    found = load(path, "none", run_machine_code=format == "aotinductor")(graphs)
    for name in ("energy", "forces", "stress"):
        # A molecule has no volume and so no stress: NaN in both.
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4, equal_nan=kind == "molecules")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_forces_and_stress_are_written_for_torch(tmp_path: Path, model: str, kind: str):
    compare(tmp_path / "model.pt2", "torch", model, kind)


@pytest.mark.parametrize(("model", "kind"), [("SchNet", "crystals"), ("PaiNN", "slabs"), ("ForceField", "molecules")])
def test_forces_and_stress_are_written_for_onnx(tmp_path: Path, model: str, kind: str):
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    compare(tmp_path / "model.onnx", "onnx", model, kind)


def test_the_operations_of_cells_are_ones_that_a_file_may_hold():
    for target in (
        "aten.linalg_cross.default",
        "aten._linalg_det.default",
        "aten.bmm.default",
        "aten.diagonal.default",
    ):
        assert str(safe_operation(target)) == target
