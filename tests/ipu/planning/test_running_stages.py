"""Steps that run in stages: bit by bit the results of the step as a whole, whatever the order and whatever is kept."""

import copy

import pytest
import torch
from torch import nn

from popgeo import ipu


class Layer(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.forward_part = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout))
        self.out = nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.out(self.forward_part(x))


class Transformer(nn.Module):
    """Tokens in, their loss and scores out; the head may share the embedding's weights."""

    def __init__(self, layers: int = 3, dropout: float = 0.3, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(Layer(8, dropout) for _ in range(layers))
        self.head = nn.Linear(8, 16, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        scores = self.head(x)
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten()), scores


class Normed(nn.Module):
    """Batch norms, operations in place, and buffers that the model replaces or changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True)) for _ in range(3)
        )
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        self.count.add_(x.detach().sum())
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0).detach()
        return (x - self.mean).square().mean() + x.sigmoid().mean(), x.t()


TOKENS = torch.randint(0, 16, (64, 4), generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
MODELS = {
    "transformer": (Transformer(), TOKENS),
    "tied": (Transformer(tied=True), TOKENS),
    "norms": (Normed(), ROWS),
}


def trained(name, **options):
    """What two calls return, and the weights, buffers and optimizer state that they leave."""
    model, given = copy.deepcopy(MODELS[name])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = ipu.training_model(model, ipu.Options(random_seed=1, **options), optimizer)
    results = [t for part in given[: 2 * 4 * step.options.batch_factor].chunk(2) for t in step(part)]
    state = [t for of in optimizer.state.values() for t in of.values()]
    return step, [*results, *model.state_dict().values(), *state]


def assert_same(these, those):
    for one, other in zip(these, those, strict=True):
        assert torch.equal(one, other)


@pytest.fixture(scope="module")
def whole():
    return {name: trained(name, gradient_accumulation=3)[1] for name in MODELS}


@pytest.mark.parametrize(("schedule", "recompute"), [("1f1b", True), ("grouped", False), ("sharded", True)])
@pytest.mark.parametrize("name", MODELS)
def test_stages_give_what_the_whole_step_gives(whole, name, schedule, recompute):
    step, results = trained(name, gradient_accumulation=3, stages=3, schedule=schedule, recompute=recompute)
    assert_same(results, whole[name])
    assert len(step.pipeline.stages) == 3
