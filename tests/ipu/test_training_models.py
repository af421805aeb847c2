"""Training with the library's models equals eager PyTorch with any options.

Options do not depend on models, so `test_compiled_calls.py` tries all their combinations with a line.
"""

import copy

import pytest
import torch
from torch import Tensor, nn

from popgeo.ipu import Options, training_model
from popgeo.nn import GCN, GIN, SchNet
from popgeo.ops import global_add_pool

NODES, EDGES, GRAPHS = 20, 60, 4


class Energies(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = SchNet(hidden_channels=8, num_filters=8, num_interactions=2, num_gaussians=6, max_num_neighbors=3)

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        energy = self.net(z, pos, batch, num_graphs=GRAPHS).squeeze(-1)
        return energy, (energy - y).abs().mean()


class Classes(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.net = kind(3, 8, num_layers=2, out_channels=1)

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        out = global_add_pool(self.net(pos, edge_index), batch, GRAPHS).squeeze(-1)
        return out, (out - y).square().mean()


MODELS = {"schnet": Energies, "gcn": lambda: Classes(GCN), "gin": lambda: Classes(GIN)}
TOLERANCE = {torch.float64: {"rtol": 1e-9, "atol": 1e-9}, torch.float32: {"rtol": 1e-3, "atol": 1e-4}}


def make_batch(seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "z": torch.randint(1, 9, (NODES,), generator=generator),
        "pos": torch.randn(NODES, 3, generator=generator, dtype=dtype),
        "edge_index": torch.randint(0, NODES, (2, EDGES), generator=generator),
        "batch": torch.arange(NODES) * GRAPHS // NODES,
        "y": torch.randn(GRAPHS, generator=generator, dtype=dtype),
    }


def make_pair(name: str, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    return model, copy.deepcopy(model)


@pytest.mark.parametrize("name", MODELS)
def test_five_steps_equal_eager_pytorch(name, native):
    assert_five_steps_equal(name, torch.float64)


@pytest.mark.parametrize("name", MODELS)
def test_five_steps_in_float32_are_close_to_eager_pytorch(name):
    assert_five_steps_equal(name, torch.float32)


def assert_five_steps_equal(name: str, dtype: torch.dtype) -> None:
    model, reference = make_pair(name, dtype)
    step = training_model(model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3))
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-3)
    for seed in range(5):
        batch = make_batch(seed, dtype)
        prediction, loss = step(**batch)
        optimizer.zero_grad()
        expected = reference(**batch)
        expected[1].backward()
        optimizer.step()
        torch.testing.assert_close((prediction, loss), tuple(t.detach() for t in expected), **TOLERANCE[dtype])
    torch.testing.assert_close(dict(model.state_dict()), dict(reference.state_dict()), **TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("name", "iterations", "accumulation", "replicas", "reduction"),
    [
        ("schnet", 2, 2, 2, "mean"),
        ("gcn", 2, 2, 2, "sum"),
        ("gin", 2, 2, 1, "mean"),
        ("gin", 1, 2, 2, "sum"),
        ("gin", 2, 1, 2, "mean"),
    ],
)
def test_whole_networks_under_options_equal_eager_pytorch(name, iterations, accumulation, replicas, reduction):
    model, reference = make_pair(name, torch.float64)
    options = Options(
        device_iterations=iterations, gradient_accumulation=accumulation, replication_factor=replicas,
        reduction=reduction, output_mode="all",
    )  # fmt: skip
    step = training_model(model, options, torch.optim.AdamW(model.parameters(), lr=1e-3))
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-3)
    joined = accumulation * replicas
    for call in range(2):
        parts = [make_batch(100 * call + number, torch.float64) for number in range(options.batch_factor)]
        losses = step(**{key: torch.cat([part[key] for part in parts]) for key in parts[0]})[1].reshape(-1)
        expected = []
        for start in range(0, len(parts), joined):
            optimizer.zero_grad()
            for part in parts[start : start + joined]:
                loss = reference(**part)[1]
                (loss / (joined if reduction == "mean" else 1)).backward()
                expected.append(loss.detach())
            optimizer.step()
        torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(dict(model.state_dict()), dict(reference.state_dict()), rtol=1e-9, atol=1e-9)
