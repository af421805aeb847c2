"""Layers in shards: results, gradients and training steps of the plain layers, in the engine and tile by tile."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from popgeo import ipu
from popgeo.ipu import IpuTarget, TileExact
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

CUTS = {
    "columns": lambda plain, count: ColumnParallelLinear.from_linear(plain, count, gather_output=True),
    "rows": lambda plain, count: RowParallelLinear.from_linear(plain, count, input_is_cut=False),
    "grid": lambda plain, count: ParallelLinear2D.from_linear(plain, (2, count)),
    "vocabulary": lambda plain, count: ParallelEmbedding.from_embedding(plain, count),
    "width": lambda plain, count: ParallelEmbedding.from_embedding(plain, count, cut="width"),
}


class PlainAttention(nn.Module):
    """Causal attention of four heads in plain PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (f(x).unflatten(-1, (4, 2)).transpose(1, 2) for f in (self.query, self.key, self.value))
        return self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A layer of a GPT, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.norm = nn.LayerNorm(8)
        self.attend = PlainAttention()
        self.mlp = nn.ModuleDict({"up": nn.Linear(8, 16), "down": nn.Linear(16, 8)})
        self.head = nn.Linear(8, 12, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.attend(self.norm(x))
        x = x + self.mlp["down"](F.gelu(self.mlp["up"](x)))
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.roll(-1, 1).flatten())


def in_shards(plain: Block, count: int) -> Block:
    model = copy.deepcopy(plain)
    cuts = {"embed": "vocabulary", "mlp.up": "column", "mlp.down": "row", "head": "gathered column"}
    shard_linears(model, cuts, count)
    model.attend = ParallelAttention.from_linears(*model.attend.children(), num_heads=4, num_shards=count)
    return model


def plain_state(model: Block) -> dict[str, Tensor]:
    """Return the weights by their names in the plain model."""
    model, attention = copy.deepcopy(model), PlainAttention()
    attention.query, attention.key, attention.value, attention.out = model.attend.to_linears()
    model.attend = attention
    return join_shards(model).state_dict()


@pytest.fixture(scope="module")
def block() -> Block:
    torch.manual_seed(0)
    return Block()


TOKENS = torch.tensor([[0, 3, 11, 5, 7], [2, 2, 9, 10, 1]])


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("count", [1, 3])
def test_result_and_gradients_are_those_of_the_plain_layer(name: str, count: int):
    torch.manual_seed(1)
    is_table = name in ("vocabulary", "width")
    plain = nn.Embedding(9, 6) if is_table else nn.Linear(9, 6)
    layer = CUTS[name](plain, count)
    x = TOKENS.clamp(max=8) if is_table else torch.randn(2, 5, 9, requires_grad=True)
    results, gradients = [], []
    for module in (plain, layer):
        out = module(x)
        results.append(out)
        wanted = [*module.parameters(), *([] if is_table else [x])]
        gradients.append(torch.autograd.grad(out.square().sum(), wanted))
    assert_close(results[1], results[0])
    if is_table:
        assert torch.equal(*results)  # bit for bit
    assert_close(gradients[1][-1].reshape(gradients[0][-1].shape), gradients[0][-1]) if not is_table else None
    cut = copy.deepcopy(layer)
    for parameter, gradient in zip(cut.parameters(), gradients[1], strict=False):
        parameter.data = gradient
    for found, expected in zip(cut.to_plain().parameters(), gradients[0], strict=False):
        assert_close(found.detach(), expected)
    assert all(torch.equal(a, b) for a, b in zip(layer.to_plain().parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("layer", [ColumnParallelLinear(6, 4, 2), RowParallelLinear(4, 6, 2, input_is_cut=False)])
def test_a_vector_without_rows_and_no_bias_will_do(layer: nn.Module):
    x = torch.ones(layer.in_features)
    layer.bias = None
    assert_close(layer(x).flatten(), layer.to_linear()(x))


def test_made_with_a_seed_it_has_the_weights_of_the_plain_layer():
    torch.manual_seed(5)
    plain = nn.Linear(6, 4)
    torch.manual_seed(5)
    assert torch.equal(RowParallelLinear(6, 4, 3).to_linear().weight, plain.weight)


@pytest.mark.parametrize("count", [2, 4])
def test_a_block_in_shards_trains_as_the_plain_one(block: Block, count: int):
    plain, cut = copy.deepcopy(block), in_shards(block, count)
    losses = []
    for model in (plain, cut):
        # Not Adam: the gradient of the keys' bias is rounding alone, which Adam would make as large as any other.
        step = ipu.training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        losses.append(torch.stack([step(TOKENS) for _ in range(4)]))
    assert losses[0][-1] < losses[0][0]
    assert_close(losses[1], losses[0], rtol=1e-6, atol=1e-6)
    for name, weight in plain_state(cut).items():
        assert_close(weight, plain.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_two_ipus_of_four_tiles_train_it_as_the_engine_does(block: Block):
    cut = in_shards(block, 2)
    target = replace(IpuTarget.bow(), name="4 tiles", num_tiles=4, num_ipus=2)
    options = ipu.Options(target=target, strict=False)
    step = ipu.training_model(cut, options, torch.optim.SGD(cut.parameters(), lr=0.1)).compile(TOKENS)
    exact = TileExact(step, target)
    assert_close(exact(TOKENS), step(TOKENS))
    held = exact.state_dict()
    for name, parameter in cut.named_parameters():
        assert_close(held[name], parameter.detach(), rtol=1e-6, atol=1e-7)
    assert not any(name.startswith("popgeo.") for name in exact.program.fallbacks)


def test_what_does_not_divide_is_refused_with_the_nearest_that_does():
    with pytest.raises(ValueError, match=r"out_features is 10, which 4 shards cannot .* 8 and 12"):
        ColumnParallelLinear(8, 10, 4)
    with pytest.raises(ValueError, match=r"in_features is 10, which 3 .* 9 and 12"):
        ParallelLinear2D(10, 8, (2, 3))
    with pytest.raises(ValueError, match=r"num_embeddings is 50257, which 4 shards .* 50256 and 50260"):
        ParallelEmbedding(50257, 8, 4, device="meta")
    with pytest.raises(ValueError, match="cut is 'height'"):
        ParallelEmbedding(8, 8, 4, cut="height")
    with pytest.raises(ValueError, match=r"num_heads is 6, which 4 .* 4 and 8"):
        ParallelAttention(12, 6, 4)
    with pytest.raises(ValueError, match="padding_idx"):
        ParallelEmbedding.from_embedding(nn.Embedding(4, 2, padding_idx=0), 2)
    with pytest.raises(ValueError, match=r"x has shape \(3, 8\); it must be \(2, 4\)\. Cut the layer before"):
        RowParallelLinear(8, 4, 2)(torch.ones(3, 8))


@pytest.mark.parametrize("cut", ["vocabulary", "width"])
@pytest.mark.parametrize("index", [-1, 6])
def test_an_index_outside_the_table_is_refused_as_by_a_plain_embedding(cut: str, index: int):
    with pytest.raises(IndexError):
        ParallelEmbedding(6, 4, 2, cut=cut)(torch.tensor([index]))


def test_names_of_no_layer_and_layers_that_cannot_be_cut_are_refused_before_anything_changes(block: Block):
    model = copy.deepcopy(block)
    with pytest.raises(ValueError, match=r"ends in 'mlp\.upp'\. Did you mean 'mlp\.up'"):
        shard_linears(model, {"mlp.down": "row", "mlp.upp": "column"}, 2)
    with pytest.raises(ValueError, match=r"norm is a LayerNorm; only an nn\.Linear"):
        shard_linears(model, {"mlp.down": "row", "norm": "column"}, 2)
    with pytest.raises(ValueError, match=r"mlp\.up: out_features is 16, which 3"):
        shard_linears(model, {"mlp.up": "column"}, 3)
    with pytest.raises(ValueError, match=r"The cut of mlp\.up is 'columns'"):
        shard_linears(model, {"mlp.up": "columns"}, 2)
    with pytest.raises(ValueError, match="single layer"):
        join_shards(ColumnParallelLinear(2, 2, 2))
    assert model.state_dict().keys() == block.state_dict().keys()


def test_a_part_of_a_model_is_not_trained_by_a_compiled_step_and_a_grid_not_parted(block: Block):
    model = keep_shards(in_shards(block, 4), rank=1, world_size=2)
    assert model.mlp["up"].weight.shape == (2, 4, 8)
    assert model.embed.first_shard == 2
    with pytest.raises(ValueError, match="embed holds 2 of its 4 shards"):
        ipu.training_model(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)).compile(TOKENS)
    with pytest.raises(ValueError, match="4 shards, which 3 processes cannot"):
        keep_shards(in_shards(block, 4), 0, 3)
    with pytest.raises(ValueError, match="a grid"):
        keep_shards(ParallelLinear2D(4, 4, (2, 2)), 0, 2)
