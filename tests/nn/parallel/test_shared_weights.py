"""Cutting and joining layers keeps what a model shares, and refuses what a copy of the weights would lose."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.testing import assert_close

from popgeo.nn import (
    ColumnParallelLinear,
    ParallelAttention,
    ParallelEmbedding,
    ParallelLinear2D,
    RowParallelLinear,
    join_shards,
    keep_shards,
    shard_linears,
)

TIED = {"embed": "vocabulary", "head": "gathered column", "twice": "gathered column"}


class TiedModel(nn.Module):
    """A language model whose head has the weights of its embedding, and one layer that it calls by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)
        self.head.weight = self.embed.weight
        self.bias = self.head.bias
        self.twice = nn.Linear(8, 8)
        self.again = nn.ModuleList([self.twice])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.again[0](torch.tanh(self.twice(self.embed(tokens))))
        return (self.head(x) + self.bias.sum()).square().mean()


def train(model: nn.Module) -> Tensor:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    for _ in range(4):
        optimizer.zero_grad()
        losses.append(model(torch.tensor([[0, 5, 11]])))
        losses[-1].backward()
        optimizer.step()
    return torch.stack(losses).detach()


@pytest.mark.parametrize("cuts", [TIED | {"head": "whole row", "embed": "width"}, {"again.0": "whole row"}])
@pytest.mark.parametrize("count", [2, 4])
def test_shared_weights_and_layers_stay_shared_and_train_as_before(cuts: dict[str, str], count: int):
    torch.manual_seed(0)
    plain = TiedModel()
    cut = shard_linears(copy.deepcopy(plain), cuts, count)
    joined = join_shards(copy.deepcopy(cut))
    expected = train(plain)
    for model in (cut, joined):
        assert model.head.weight is model.embed.weight
        assert model.twice is model.again[0]
        assert model.head.bias is model.bias
        assert_close(train(model), expected)
    for one, other in zip(join_shards(cut).parameters(), plain.parameters(), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("cuts", [{"embed": "vocabulary"}, {"head": "row"}, {"embed": "width", "head": "column"}, TIED])
def test_a_shared_weight_that_would_differ_is_refused_and_the_model_unchanged(cuts: dict[str, str]):
    model = TiedModel()
    before = dict(model.named_parameters())
    with pytest.raises(ValueError, match="is also the weight of a layer with a different cut"):
        shard_linears(model, cuts, 2)  # TIED cuts the head's bias, which is also the model's
    assert dict(model.named_parameters()) == before
    assert type(model.twice) is nn.Linear


def test_a_process_that_keeps_its_shards_keeps_what_they_share():
    model = TiedModel()
    del model.bias
    kept = keep_shards(shard_linears(model, TIED, 4), rank=1, world_size=2)
    assert kept.head.weight is kept.embed.weight
    assert kept.head.weight.shape == (2, 3, 8)


LOST: dict[str, Callable[[nn.Module], object]] = {
    "hook": lambda layer: layer.register_forward_hook(lambda module, given, made: made * 2),
    "hook before": lambda layer: layer.register_forward_pre_hook(lambda module, given: given),
    "hook behind": lambda layer: layer.register_full_backward_hook(lambda module, given, made: None),
    "hook of states": lambda layer: layer.register_state_dict_pre_hook(lambda module, prefix, keep: None),
    "parametrization": lambda layer: parametrizations.weight_norm(layer),
    "pruning": lambda layer: prune.identity(layer, "weight"),
}


@pytest.mark.parametrize("change", LOST)
def test_hooks_and_computed_weights_are_refused_by_every_way_of_cutting_and_joining(change: str):
    linear, table, others = nn.Linear(4, 4), nn.Embedding(4, 4), [nn.Linear(4, 4) for _ in range(3)]
    sharded = [ColumnParallelLinear(4, 4, 2), RowParallelLinear(4, 4, 2), ParallelEmbedding(4, 4, 2)]
    for layer in (linear, table, *sharded):
        LOST[change](layer)
    ways = [lambda kind=kind: kind.from_linear(linear, 2) for kind in (ColumnParallelLinear, RowParallelLinear)]
    ways += [lambda: ParallelLinear2D.from_linear(linear, (2, 2)), lambda: ParallelEmbedding.from_embedding(table, 2)]
    ways += [lambda: ParallelAttention.from_linears(linear, *others, num_heads=2, num_shards=2)]
    ways += [layer.to_plain for layer in sharded]
    for way in ways:
        with pytest.raises(ValueError, match="hooks or computed weights"):
            way()


def test_a_part_of_the_shards_is_neither_joined_nor_divided_again():
    def parted() -> nn.Module:
        layers = ColumnParallelLinear(4, 8, 4), RowParallelLinear(8, 4, 4), ParallelEmbedding(8, 4, 4)
        return keep_shards(nn.Sequential(*layers, ParallelAttention(8, 4, 4)), 1, 2)

    for use in (join_shards, lambda model: keep_shards(model, 1, 2), lambda model: model[3].to_linears()):
        with pytest.raises(ValueError, match="holds 2 of its 4 shards"):
            use(parted())
    with pytest.raises(ValueError, match="holds 2 of its 4 shards"):
        parted()[2].to_plain()


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_process_number_outside_of_the_processes_is_refused(rank: int, size: int):
    with pytest.raises(ValueError, match=f"rank is {rank} and world_size {size}; ranks count from 0"):
        keep_shards(nn.Sequential(ColumnParallelLinear(4, 8, 4)), rank, size)


@pytest.mark.parametrize(
    "layer",
    [ColumnParallelLinear(8, 8, 2), RowParallelLinear(8, 8, 2, input_is_cut=False), ParallelLinear2D(8, 8, (2, 2))],
)
def test_an_input_of_another_width_is_refused_even_if_its_numbers_fill_rows(layer: nn.Module):
    with pytest.raises(ValueError, match=r"x has shape \(4, 4\); it must be \(4, 8\)"):
        layer(torch.ones(4, 4))


def test_attention_of_other_widths_or_partly_frozen_layers_is_refused():
    def linears(frozen: str = "", wide: int = 8) -> list[nn.Linear]:
        made = [nn.Linear(8, 8), nn.Linear(8, wide), nn.Linear(8, wide), nn.Linear(8, 8)]
        for name, parameter in made[1].named_parameters():
            parameter.requires_grad_(name != frozen)
        return made

    for frozen in ("weight", "bias"):
        with pytest.raises(ValueError, match=f"Only some of query, key and value have a {frozen}, or train it"):
            ParallelAttention.from_linears(*linears(frozen), num_heads=2, num_shards=2)
    with pytest.raises(ValueError, match=r"key has shape \(4, 8\); it must be \(8, 8\)\. All keep the width"):
        ParallelAttention.from_linears(*linears(wide=4), num_heads=2, num_shards=2)
