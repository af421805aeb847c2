"""The ops that `shard_exchange` calls: exchanges between shards of all processes, with derivatives."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from popgeo.ops.lost_process import names_lost_process
from popgeo.ops.refusals import check_least
from popgeo.ops.register_op import register


def _world(num_shards: int, num_local: int) -> int:
    """Return the number of processes that store the shards.

    Raises:
        ValueError: the number does not match the size of torch's process group.
    """
    world_size = num_shards // num_local if num_local > 0 else 0
    found = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if world_size not in (1, found):
        raise ValueError(
            f"The shards lie in {world_size} processes, but torch.distributed has {found}. Start as many with torchrun "
            "and call torch.distributed.init_process_group() first, or hold all shards in one process."
        )
    return world_size


def _everywhere(x: Tensor, num_shards: int) -> Tensor:
    """Gather the rows of the shards of all processes. [num_shards, ...]."""
    if _world(num_shards, x.shape[0]) == 1:
        return x
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(num_shards // x.shape[0])]
    with names_lost_process("gather the shards of the others"):
        dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def _here(num_shards: int, num_local: int) -> slice:
    """Return the slice of this process's shards."""
    first = dist.get_rank() * num_local if _world(num_shards, num_local) > 1 else 0
    return slice(first, first + num_local)


def _sum(x: Tensor, num_shards: int, stride: int) -> Tensor:
    """Sum shards in order, so that any number of processes gives the same bits. Half precision is summed in float32."""
    parts = _everywhere(x, num_shards)
    narrow = x.dtype in (torch.float16, torch.bfloat16)
    total = parts[0].to(torch.float32 if narrow else x.dtype).clone(memory_format=torch.contiguous_format)
    for part in parts[1:]:
        total += part
    return total.to(x.dtype)


def _copies(x: Tensor, num_shards: int, num_local: int, stride: int) -> Tensor:
    return x.expand(num_local, *x.shape).clone(memory_format=torch.contiguous_format)


def _joined(x: Tensor, num_shards: int, dim: int, stride: int) -> Tensor:
    return torch.cat(_everywhere(x, num_shards).unbind(), dim).contiguous()


def _cut(x: Tensor, num_shards: int, num_local: int, dim: int, stride: int) -> Tensor:
    check_least(1, num_shards=num_shards)
    parts = x.unflatten(dim, (num_shards, x.shape[dim] // num_shards)).movedim(dim, 0)
    return parts[_here(num_shards, num_local)].clone(memory_format=torch.contiguous_format)


def _sum_and_cut(x: Tensor, num_shards: int, dim: int, stride: int) -> Tensor:
    return _cut(_sum(x, num_shards, stride), num_shards, x.shape[0], dim, stride)


def _exchanged(x: Tensor, num_shards: int) -> Tensor:
    num_local, _, *rest = x.shape
    world_size = _world(num_shards, num_local)
    if world_size == 1:
        return x.transpose(0, 1).clone(memory_format=torch.contiguous_format)
    sent = x.reshape(num_local, world_size, num_local, *rest).transpose(0, 1)  # [process, owner, receiver, ...]
    out = torch.empty_like(sent, memory_format=torch.contiguous_format)
    with names_lost_process("exchange rows"):
        dist.all_to_all_single(out, sent.contiguous())
    return out.movedim(2, 0).reshape(num_local, num_shards, *rest).contiguous()  # [receiver, process and owner, ...]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.num_local, ctx.numbers = (inputs[0].shape[0] if inputs[0].dim() else 1), inputs[1:]


def _copy_back(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    num_shards, stride = ctx.numbers
    return REPLICATE(grad, num_shards, ctx.num_local, stride), None, None


def _sum_back(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    num_shards, _, stride = ctx.numbers
    return ALL_REDUCE(grad, num_shards, stride), None, None, None


def _cut_back(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    num_shards, dim, stride = ctx.numbers
    return SHARD(grad, num_shards, ctx.num_local, dim, stride), None, None, None


def _join_back(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    num_shards, _, dim, stride = ctx.numbers
    return ALL_GATHER(grad, num_shards, dim, stride), None, None, None, None


def _join_and_copy_back(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    num_shards, dim, stride = ctx.numbers
    whole = ALL_GATHER(grad, num_shards, dim, stride)
    return REPLICATE(whole, num_shards, ctx.num_local, stride), None, None, None


def _send_back(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return ALL_TO_ALL(grad, *ctx.numbers), None


def _resized(shape: torch.Size, dim: int, size: int) -> list[int]:
    return [*shape[:dim], size, *shape[dim + 1 :]]


_register = partial(register, setup_context=_remember)
ALL_REDUCE = _register(
    "all_reduce(Tensor x, int num_shards, int stride) -> Tensor",
    kernel=_sum,
    fake=lambda x, num_shards, stride: x.new_empty(x.shape[1:]),
    backward=_copy_back,
)
REPLICATE = _register(
    "replicate(Tensor x, int num_shards, int num_local, int stride) -> Tensor",
    kernel=_copies,
    fake=lambda x, num_shards, num_local, stride: x.new_empty((num_local, *x.shape)),
    backward=_sum_back,
)
ALL_GATHER = _register(
    "all_gather(Tensor x, int num_shards, int dim, int stride) -> Tensor",
    kernel=_joined,
    fake=lambda x, num_shards, dim, stride: x.new_empty(_resized(x.shape[1:], dim, x.shape[dim + 1] * num_shards)),
    backward=_cut_back,
)
SHARD = _register(
    "shard(Tensor x, int num_shards, int num_local, int dim, int stride) -> Tensor",
    kernel=_cut,
    fake=lambda x, num_shards, num_local, dim, stride: x.new_empty(
        (num_local, *_resized(x.shape, dim, x.shape[dim] // num_shards))
    ),
    backward=_join_back,
)
REDUCE_SCATTER = _register(
    "reduce_scatter(Tensor x, int num_shards, int dim, int stride) -> Tensor",
    kernel=_sum_and_cut,
    fake=lambda x, num_shards, dim, stride: x.new_empty(_resized(x.shape, dim + 1, x.shape[dim + 1] // num_shards)),
    backward=_join_and_copy_back,
)
ALL_TO_ALL = _register(
    "all_to_all(Tensor x, int num_shards) -> Tensor",
    kernel=_exchanged,
    fake=lambda x, num_shards: x.new_empty(x.shape),
    backward=_send_back,
)
