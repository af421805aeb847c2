"""The guide's table of PyG's layers agrees with the script for some layers; the script has all layers."""

import importlib.util
import warnings
from types import ModuleType

import pytest

from tests.conftest import REPOSITORY

# One line of each mechanism; `python scripts/pyg_table.py` compiles all lines in about two minutes.
TRIED = [
    "GCNConv(8, 4)",
    "GATConv(8, 4, heads=2, edge_dim=3)",
    "RGCNConv(8, 4, 3)",
    "ChebConv(8, 4, 3)",
    "GAT(8, 8, 2, 4, heads=2)",
]
# Classes of torch_geometric.nn without a line: base classes, and classes that need another library or special data.
LEFT_OUT = {
    *("Aggregation", "MessagePassing", "KGEModel", "KNNIndex", "L2KNNIndex", "MIPSKNNIndex", "ApproxL2KNNIndex"),
    *("ApproxMIPSKNNIndex", "CuGraphSAGEConv", "CuGraphGATConv", "CuGraphRGCNConv", "FusedGATConv"),
    *("to_captum_model", "to_captum_input", "captum_output_to_dicts", "RENet", "GPSE", "CorrectAndSmooth"),
}


@pytest.fixture(scope="module")
def table() -> ModuleType:
    """Import the script as a module."""
    spec = importlib.util.spec_from_file_location("pyg_table", REPOSITORY / "scripts" / "pyg_table.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize("tried", TRIED)
def test_a_layer_as_people_write_it_equals_eager(table: ModuleType, tried: str):
    ((_, made, called),) = [line for line in table.lines() if line[1] == tried]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert table.check(made, called) == "equal"


def test_every_public_name_has_a_line(table: ModuleType):
    assert table.missing() == LEFT_OUT


def test_the_guide_has_what_the_script_wrote(table: ModuleType):
    written = table.GUIDE.read_text().split(table.BEGIN)[1].split(table.END)[0]
    names = {name for name, _, _ in table.lines()}
    assert all(f"`{name}`" in written for name in names)
