"""Steps in stages on the tiles of several small IPUs give the engine's results; each IPU holds its own weights only."""

import copy

import pytest
import torch
from torch import nn

from popgeo import ipu
from popgeo.ipu.tiles.steps import ComputeSet, Exchange

TOKENS = torch.randint(0, 6, (32,), generator=torch.Generator().manual_seed(0))
TILES = 8  # of each IPU


class Tower(nn.Module):
    """A model of tokens, with running statistics, a replaced buffer, and a head that may share its weights."""

    def __init__(self, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4, 6, bias=False)
        self.register_buffer("mean", torch.zeros(4))
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        scores = self.head(self.dropout(x - self.mean))
        return nn.functional.cross_entropy(scores, tokens), scores


def compiled(model=None, **options):
    torch.manual_seed(0)
    model = model or Tower()
    rule = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = ipu.training_model(model, ipu.Options(**{"schedule": "1f1b", **options}), rule)
    return step.compile(TOKENS[: 4 * step.options.batch_factor])


@pytest.mark.parametrize(
    ("tied", "options"),
    [
        (True, {"gradient_accumulation": 2, "stages": 2, "schedule": "grouped", "recompute": True}),
        (True, {"gradient_accumulation": 2, "stages": 2, "schedule": "phased", "max_grad_norm": 0.1}),
        (False, {"gradient_accumulation": 2, "stages": 2, "replication_factor": 2, "output_mode": "all"}),
    ],
)
def test_stages_on_tiles_equal_the_engine(tied, options):
    torch.manual_seed(0)
    step = compiled(Tower(tied), **options)
    assert_same(ipu.TileExact(step), step)


def assert_same(exact, step):
    """Take one step with both, and compare results and weights."""
    given = TOKENS[: 4 * step.options.batch_factor]
    for made, expected in zip(exact(given), step(given), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)
    held = exact.state_dict()
    for name, tensor in step.model.state_dict().items():
        if name in held:
            torch.testing.assert_close(held[name], tensor, rtol=1e-5, atol=1e-6)


def test_inference_in_stages_equals_the_engine_on_tiles():
    model = Tower().eval()
    step = ipu.inference_model(model, ipu.Options(device_iterations=3, stages=2))
    given = TOKENS[:12]
    for made, expected in zip(ipu.TileExact(step.compile(given))(given), step(given), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-6)


def test_tiles_hold_the_weights_of_their_own_stage_and_work_on_nothing_else():
    step = compiled(gradient_accumulation=2, stages=2)
    exact = ipu.TileExact(step)
    assert_same(exact, step)
    program = exact.program
    assert program.num_tiles == 2 * TILES
    (first, second) = (stage.layers for stage in step.pipeline.stages)
    assert (first, second) == ("embed to layers.0", "layers.1 to head")
    (at,) = (exact._last.places[given] for given in step.graph.inputs if given.name == "layers.1.0.weight")
    holders = program.variables[at.variable].mapping.holders()[at.elements.ravel()]
    assert set(holders // TILES) == {1}
    (at,) = (exact._last.places[given] for given in step.graph.inputs if given.name == "embed.weight")
    assert set(program.variables[at.variable].mapping.holders()[at.elements.ravel()] // TILES) == {0}
    for one in (s for s in program.walk() if getattr(s, "name", "").startswith("stage ")):
        on_ipu = int(one.name.split()[1])
        for part in one.body:
            if isinstance(part, ComputeSet) and part.name != "receive":
                tiles = {vertex.tile // TILES for vertex in part.vertices}
                assert tiles == {on_ipu} or "collect" in part.name
    crossing = [t for s in program.walk() if isinstance(s, Exchange) for t in s.transfers]
    assert any(t.source // TILES != t.destination // TILES for t in crossing)


def test_random_draws_of_overlapping_stages_are_refused_on_tiles():
    model = Tower(dropout=0.5)
    with pytest.raises(ValueError, match=r"bernoulli_\.float draws random numbers .*sharded"):
        ipu.TileExact(compiled(copy.deepcopy(model), gradient_accumulation=2, stages=2))
    step = compiled(model, gradient_accumulation=2, stages=2, schedule="sharded", random_seed=1)
    exact = ipu.TileExact(step)
    torch.testing.assert_close(exact(TOKENS[:8])[0], step(TOKENS[:8])[0], rtol=1e-5, atol=1e-6)
