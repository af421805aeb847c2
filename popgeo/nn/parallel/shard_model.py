"""Functions that shard the layers of a model, restore plain layers, or keep one process's shards."""

from collections.abc import Mapping

from torch import nn

from popgeo.did_you_mean import meant
from popgeo.nn.parallel.embedding import ParallelEmbedding
from popgeo.nn.parallel.linear import ColumnParallelLinear, ParallelLinear2D, RowParallelLinear
from popgeo.nn.parallel.parallel_attention import ParallelAttention
from popgeo.nn.parallel.sharded_module import Cut, ShardedModule, as_parameter, require_all_shards
from popgeo.ops.refusals import check_choice


def shard_linears(model: nn.Module, cuts: Mapping[str, Cut | str], num_shards: int) -> nn.Module:
    """Shard linear layers and embeddings of a model, in place.

    Only elementwise layers, such as an activation or dropout, are allowed between a `column` and the next `row`. For
    attention use `ParallelAttention.from_linears`. Layers with the same weight still share it, if they are cut alike:
    `vocabulary` with `gathered column`, or `width` with `row`. The sharded layers have new parameters, so make the
    optimizer afterwards.

    Args:
        model: The model to change. Other layers stay unchanged, and every shard has all of them.
        cuts: The cut of each layer, by the end of its dotted name: `"mlp.up"` names this layer of all blocks.
        num_shards: Number of shards.

    Returns:
        The model.

    Raises:
        ValueError: no layer has a name, a layer cannot be cut in this way, or layers that share a weight are cut in
            different ways; the model is then unchanged.

    Example:
        >>> model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        >>> shard_linears(model, {"0": "vocabulary", "1": "column", "3": "row"}, num_shards=2)[3]
        RowParallelLinear(in_features=8, out_features=4, num_shards=2, input_is_cut=True)
    """
    named = dict(model.named_modules(remove_duplicate=False))
    made: dict[nn.Module, nn.Module] = {}
    for ending, how in cuts.items():
        check_choice(f"The cut of {ending}", getattr(how, "value", how), [member.value for member in Cut])
        found = [name for name in named if name == ending or name.endswith(f".{ending}")]
        if not found:
            question = meant(ending, [*named, *(name.rpartition(".")[2] for name in named)])
            raise ValueError(f"No layer's name ends in {ending!r}.{question} model.named_modules() gives all names.")
        made |= {named[name]: _cut(name, named[name], Cut(how), num_shards) for name in found}
    return _replace(model, made)


def join_shards(model: nn.Module) -> nn.Module:
    """Replace sharded layers of a model by plain linear layers and embeddings with the same weights, in place.

    Returns:
        The model. `ParallelAttention` stays sharded; its `to_linears` returns plain layers.

    Raises:
        ValueError: this process holds only some of the shards, or a layer has hooks; the model is then unchanged.

    Example:
        >>> model = shard_linears(nn.Sequential(nn.Linear(4, 8)), {"0": "gathered column"}, num_shards=2)
        >>> join_shards(model)
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
        )
    """
    within = [name for name, module in model.named_modules() if isinstance(module, ParallelAttention)]
    sharded = [
        module
        for name, module in model.named_modules()
        if isinstance(module, ShardedModule) and name.rpartition(".")[0] not in within
    ]
    return _replace(model, {module: module.to_plain() for module in sharded})


def keep_shards(model: nn.Module, rank: int, world_size: int) -> nn.Module:
    """Keep only one process's shards of a model, in place. Collectives exchange data with the other processes' shards.

    Every process calls this on the same model, and trains with plain PyTorch. Gradients of cut weights belong to the
    process, and all other gradients are the same in all processes.

    Args:
        model: A model with layers in shards.
        rank: Number of this process.
        world_size: Number of processes that share the shards.

    Raises:
        ValueError: the processes cannot share the shards evenly, `rank` is not below `world_size`, a layer is sharded
            as a grid, or some of its shards are already dropped.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank} and world_size {world_size}; ranks count from 0 to world_size - 1.")
    layers = [module for module in model.modules() if isinstance(module, ShardedModule)]
    for layer in layers:
        if isinstance(layer, ParallelLinear2D):
            raise ValueError(f"{layer} lies in a grid, and only some processes take part in its sums. Use one process.")
        if layer.num_shards % world_size:
            raise ValueError(f"{layer} has {layer.num_shards} shards, which {world_size} processes cannot share evenly")
        require_all_shards(layer)
    kept: dict[nn.Parameter, nn.Parameter] = {}  # layers with the same weight still share it
    for layer in layers:
        count = layer.num_shards // world_size
        layer.first_shard = rank * count
        for name in layer.local_parts(count):
            whole = getattr(layer, name)
            part = as_parameter(whole[rank * count : (rank + 1) * count], whole)
            setattr(layer, name, kept.setdefault(whole, part))
    return model


def _cut(name: str, layer: nn.Module, how: Cut, num_shards: int) -> ShardedModule:
    wanted = nn.Embedding if how in (Cut.VOCABULARY, Cut.WIDTH) else nn.Linear
    if type(layer) is not wanted:
        raise ValueError(f"{name} is a {type(layer).__name__}; only an nn.{wanted.__name__} is cut as {how.value!r}.")
    try:
        if isinstance(layer, nn.Embedding):
            return ParallelEmbedding.from_embedding(layer, num_shards, cut=how)
        assert isinstance(layer, nn.Linear)
        if how in (Cut.COLUMN, Cut.GATHERED_COLUMN):
            return ColumnParallelLinear.from_linear(layer, num_shards, gather_output=how is Cut.GATHERED_COLUMN)
        return RowParallelLinear.from_linear(layer, num_shards, input_is_cut=how is Cut.ROW)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _replace(model: nn.Module, made: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Replace layers in all their places of a model. Layers with the same weight still share it."""
    if model in made:
        raise ValueError("The model is a single layer; put it into an nn.Sequential, or call its from_linear.")
    new = {old: getattr(made[layer], key) for layer in made for key, old in layer.named_parameters(recurse=False)}
    named = [(f"{name}.{key}", m, key) for name, m in model.named_modules() for key in m._parameters]
    uses = [(name, made.get(m, m), key, new[m._parameters[key]]) for name, m, key in named if m._parameters[key] in new]
    for name, module, key, weight in uses:
        if getattr(module, key).shape != weight.shape:
            raise ValueError(
                f"{name.lstrip('.')} is also the weight of a layer with a different cut. Cut both alike, or none."
            )
    for _, module, key, weight in uses:
        setattr(module, key, weight)
    for module in list(model.modules()):
        for key, layer in module._modules.items():
            if layer is not None and layer in made:
                setattr(module, key, made[layer])
    return model
