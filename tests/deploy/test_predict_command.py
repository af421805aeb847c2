"""Claims about `popgeo predict`: it writes the results of a file of graphs to a file, in order."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch_geometric.data import Data

from popgeo.__main__ import main
from popgeo.data import FlatStore
from popgeo.deploy.predictor import Predictor
from popgeo.nn import GIN

HERE = "tests.deploy.test_predict_command"


def make_model() -> nn.Module:
    """Return the model that the command line names."""
    torch.manual_seed(0)
    return GIN(4, 8, 2, out_channels=2)


def never_made() -> nn.Module:
    raise AssertionError("the file is looked at first")


class CallResults(nn.Module):
    """The model that `make` returns."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


@pytest.fixture
def graphs(tmp_path: Path) -> list[Data]:
    """Write graphs to a store in the folder `store`, and return them."""
    torch.manual_seed(0)
    made = [Data(x=torch.randn(n, 4), edge_index=torch.randint(0, n, (2, 2 * n))) for n in (3, 5, 2, 7)]
    FlatStore.from_dataset(made).save(tmp_path / "store")
    return made


def predict(folder: Path, out: str, *more: str, model: str = f"{HERE}:make_model") -> int:
    return main(["predict", model, str(folder / "store"), "--out", str(folder / out), "--backend", "none", *more])


@pytest.mark.parametrize("ending", ["csv", "parquet", "npz"])
def test_results_of_nodes_are_written_in_order(tmp_path, graphs, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason="parquet is written by pyarrow")
    assert predict(tmp_path, f"out.{ending}") == 0
    model = make_model().eval()
    expected = torch.cat([model(one.x, one.edge_index) for one in graphs]).detach().numpy()
    if ending == "npz":
        with np.load(tmp_path / "out.npz") as found:
            np.testing.assert_allclose(found["out"], expected, rtol=1e-5)
            assert found["out.ptr"].tolist() == [0, 3, 8, 10, 17]
        return
    read = pd.read_csv if ending == "csv" else pd.read_parquet
    found = read(tmp_path / f"out.nodes.{ending}")
    np.testing.assert_allclose(found[["out_0", "out_1"]], expected, rtol=1e-4, atol=1e-5)
    assert found["graph"].tolist() == [0] * 3 + [1] * 5 + [2] * 2 + [3] * 7


def test_weights_of_a_checkpoint_of_lightning_are_found_under_their_prefix(tmp_path, graphs):
    trained = GIN(4, 8, 2, out_channels=2)
    state = {f"net.gin.{name}": value for name, value in trained.state_dict().items()}
    torch.save({"state_dict": state | {"net.scale": torch.ones(1)}, "epoch": 3}, tmp_path / "last.ckpt")
    predictor = Predictor.from_checkpoint(tmp_path / "last.ckpt", make_model(), backend="none")
    assert_close(predictor(graphs)["out"], Predictor(trained, backend="none")(graphs)["out"])


@pytest.mark.parametrize(
    ("out", "model", "message"),
    [
        ("out.txt", f"{HERE}:make_model", r"results are written to .csv, .parquet or .npz"),
        ("out.csv", "no.such:model", "no.such:model is not found"),
        ("out.csv", "a_model", "write package.module:name"),
        ("no/out.csv", f"{HERE}:never_made", "is not a folder, so out.csv cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(tmp_path, graphs, capsys, out, model, message):
    assert predict(tmp_path, out, model=model) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_file_that_holds_other_weights_is_refused(tmp_path):
    torch.save(GIN(4, 8, 3).state_dict(), tmp_path / "other.pt")
    with pytest.raises(ValueError, match="no weights for"):
        Predictor.from_checkpoint(tmp_path / "other.pt", GIN(4, 8, 5))
    (tmp_path / "cut.pt").write_bytes((tmp_path / "other.pt").read_bytes()[:500])
    with pytest.raises(ValueError, match=r"is not a file of torch\.save"):
        Predictor.from_checkpoint(tmp_path / "cut.pt", GIN(4, 8, 3))


def test_results_of_bfloat16_are_written_to_every_kind_of_file(tmp_path, graphs):
    found = Predictor(CallResults(lambda x: x.bfloat16()), backend="none")(graphs)
    expected = torch.cat([graph.x for graph in graphs]).bfloat16().float().numpy()
    found.save(tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as arrays:
        assert np.array_equal(arrays["out"], expected)
    assert np.array_equal(found.to_frames()["nodes"].iloc[:, 1:], expected)


@pytest.mark.parametrize("other", ["out_1", "graph"])
def test_results_that_would_share_a_column_are_refused_in_tables(tmp_path, graphs, other):
    found = Predictor(CallResults(lambda x: {"out": x, other: x[:, 0]}), backend="none")(graphs)
    with pytest.raises(ValueError, match=rf"Two results have the columns \['{other}'\]"):
        found.save(tmp_path / "out.csv")
    assert found.save(tmp_path / "out.npz") == [tmp_path / "out.npz"]
