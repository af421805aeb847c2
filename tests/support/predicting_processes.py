"""Predict as one of several processes, and compare with one process; see `test_predictor.py`."""

import sys

import torch
import torch.distributed as dist
from torch_geometric.data import Data

from popgeo.data import FixedSizeOptions
from popgeo.deploy.predictor import Predictor
from popgeo.nn import GIN


def main(file: str, rank: int, world_size: int) -> None:
    torch.manual_seed(0)
    graphs = [Data(x=torch.randn(n, 4), edge_index=torch.randint(0, n, (2, 4))) for n in (2, 9, 4, 3, 5, 7, 6)]
    model, sizes = GIN(4, 8, 2, out_channels=2), FixedSizeOptions(16, 40, 4)
    expected = Predictor(model, sizes, "none")(graphs)["out"]
    dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=world_size)
    torch.testing.assert_close(Predictor(model, sizes, "none")(graphs)["out"], expected)
    graphs[5].x = torch.ones(7, 9)
    assert list(Predictor(model, sizes, "none")(graphs, errors="keep").errors) == [5]
    try:
        Predictor(model, sizes, "none")(graphs)
    except ValueError as error:  # also in the process with different graphs
        print(error)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), 2)
