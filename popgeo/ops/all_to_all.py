"""Rows that shards hold for each other change places, within a process or between those of torch.distributed."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from popgeo.ops.register_op import register


def exchange_shards(x: Tensor) -> Tensor:
    """Gives each shard what all shards hold for it: rows [owner, receiver] become rows [receiver, owner].

    A process holds its own shards only, `num_local` consecutive ones of `num_shards`: process 0 the first ones, and so
    on. Where it holds all of them this is a transposition and nothing is moved. The gradient travels back the same way.

    Args:
        x: What each local shard holds for each shard. [num_local, num_shards, ...]

    Returns:
        What each local shard gets from each shard. [num_local, num_shards, ...]

    Raises:
        ValueError: the shards cannot be shared evenly; or, when it runs, there are not as many processes as the shapes
            ask for.

    Example:
        >>> exchange_shards(torch.tensor([[0, 1], [10, 11]]))  # 10 is held by shard 1 for shard 0
        tensor([[ 0, 10],
                [ 1, 11]])
    """
    num_local, num_shards, *rest = x.shape
    if num_local < 1 or num_shards % num_local:
        raise ValueError(
            f"x has the shape {tuple(x.shape)}: {num_local} local shards of {num_shards}. Each process holds equally "
            "many, so the second number must be a multiple of the first."
        )
    if num_local == num_shards:
        return x.transpose(0, 1)
    world_size = num_shards // num_local
    out = x.reshape(num_local, world_size, num_local, *rest).transpose(0, 1)  # [process, owner, receiver, ...]
    out = _ALL_TO_ALL(out.contiguous(), world_size)
    return out.movedim(2, 0).reshape(num_local, num_shards, *rest)  # [receiver, process and owner, ...]


def _all_to_all(x: Tensor, world_size: int) -> Tensor:
    found = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if found != world_size:
        raise ValueError(
            f"The shards lie in {world_size} processes, but torch.distributed has {found}. Start as many with torchrun "
            "and call torch.distributed.init_process_group() first, or hold all shards in one process."
        )
    out = torch.empty_like(x)
    try:
        dist.all_to_all_single(out, x.contiguous())
    except RuntimeError as error:
        raise RuntimeError(
            f"Process {dist.get_rank()} of {found} could not exchange rows: another process has died or does not "
            "answer. Start all of them again from the last checkpoint."
        ) from error
    return out


def _remember_world(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.world_size = inputs[1]


def _send_back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return _ALL_TO_ALL(grad.contiguous(), ctx.world_size), None


_ALL_TO_ALL = register(
    "all_to_all(Tensor x, int world_size) -> Tensor",
    kernel=_all_to_all,
    fake=lambda x, world_size: x.new_empty(x.shape),
    setup_context=_remember_world,
    backward=_send_back,
)
