"""SchNet and GIN train in float16 as well as in float32."""

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

import popgeo
from popgeo.nn import GIN, KNNInteractionGraph, SchNet

NUM_GRAPHS, STEPS = 8, 10
HALF = {"optimizer_state_dtype": torch.float32, "loss_scaling": popgeo.LossScaling(initial=1024.0)}


class Gap(nn.Module):
    """A model with the mean squared error of the gap of each molecule, in float32."""

    def __init__(self, name: str) -> None:
        super().__init__()
        graph = KNNInteractionGraph(k=6, cutoff=5.0)
        if name == "schnet":
            self.model: nn.Module = SchNet(8, 8, 2, 10, cutoff=5.0, interaction_graph=graph, readout="mean")
        else:
            self.embedding = nn.Embedding(20, 16)
            self.model = GIN(16, 16, 2, 1, norm=None, readout="mean")
        self.name = name

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> Tensor:
        if self.name == "schnet":
            made = self.model(z, pos, batch, num_graphs=NUM_GRAPHS)
        else:
            made = self.model(self.embedding(z), edge_index, batch=batch, num_graphs=NUM_GRAPHS)
        return (made.flatten().float() - y).square().mean()


@pytest.fixture(scope="module")
def molecules() -> Batch:
    return Batch.from_data_list(list(popgeo.Molecules()[:NUM_GRAPHS]))


def curve(name: str, molecules: Batch, dtype: torch.dtype, **choices) -> tuple[Tensor, popgeo.ipu.CompiledStep]:
    torch.manual_seed(0)
    model = Gap(name).to(dtype)
    gap = molecules.y[:, 2].float()
    batch = (
        molecules.z.long(), molecules.pos.to(dtype), molecules.edge_index, molecules.batch,
        (gap - gap.mean()) / gap.std(),
    )  # fmt: skip
    options = popgeo.Options(num_threads=1, strict=False, **choices)
    training = popgeo.training_model(
        model, options, torch.optim.Adam(model.parameters(), lr=5e-3 if name == "schnet" else 2e-2)
    )
    return torch.tensor([float(training(*batch)) for _ in range(STEPS)]), training


@pytest.mark.parametrize("name", ["schnet", "gin"])
def test_half_models_follow_the_curve_of_float32(name: str, molecules: Batch):
    whole, _ = curve(name, molecules, torch.float32)
    half, training = curve(name, molecules, torch.float16, **HALF)
    assert half[-1] < 0.9 * half[0]
    torch.testing.assert_close(half, whole, rtol=0.02, atol=0)
    assert training.loss_scale.skipped == 0
    assert training.report.update_captured


def test_in_float16_alone_adam_divides_by_nothing(molecules: Batch):
    half, _ = curve("gin", molecules, torch.float16)
    assert half[-1].isnan()
