"""Collectives among processes: they and their gradients give the same as one process with all shards."""

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from popgeo import ops
from popgeo.ops import collective_ops, lost_process
from popgeo.ops.shard_exchange import exchange_shards, part_of

COUNT = 4
# Each call with the local shards and their number, and whether its argument and its result are alike on all shards.
CALLS: dict[str, tuple[Callable[[Tensor, int], Tensor], bool, bool]] = {
    "all_reduce": (lambda x, _: ops.all_reduce(x, COUNT), False, True),
    "replicate": (lambda x, n: ops.replicate(x, COUNT, num_local=n), True, False),
    "all_gather": (lambda x, _: ops.all_gather(x, 1, COUNT), False, True),
    "shard": (lambda x, n: ops.shard(x, COUNT, 1, num_local=n), True, False),
    "reduce_scatter": (lambda x, _: ops.reduce_scatter(x, -1, COUNT), False, False),
    "all_to_all": (lambda x, _: ops.all_to_all(x.unflatten(-1, (COUNT, -1)).movedim(-2, 1), COUNT), False, False),
}


class Together:
    """A replacement of `torch.distributed` for threads that act as processes."""

    group = SimpleNamespace(WORLD="all")

    def __init__(self, size: int) -> None:
        self.size, self.own = size, threading.local()
        self.barrier, self.given = threading.Barrier(size, timeout=5), [torch.empty(0)] * size

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return self.size

    def get_rank(self) -> int:
        return self.own.rank

    def all_gather(self, parts: Sequence[Tensor], x: Tensor) -> None:
        for part, given in zip(parts, self._everyone(x), strict=True):
            part.copy_(given)

    def all_to_all_single(self, out: Tensor, x: Tensor) -> None:
        for row, given in zip(out, self._everyone(x), strict=True):
            row.copy_(given[self.own.rank])

    def _everyone(self, x: Tensor) -> list[Tensor]:
        assert x.is_contiguous()
        self.given[self.own.rank] = x
        self.barrier.wait()
        found = [one.clone() for one in self.given]
        self.barrier.wait()
        return found

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Return the function's result for each process."""
        results: list[Any] = [None] * self.size

        def work(rank: int) -> None:
            self.own.rank = rank
            try:
                results[rank] = function(rank)
            except Exception as error:
                results[rank] = error
                self.barrier.abort()

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("num_processes", [1, 2, 4])
@pytest.mark.parametrize("name", CALLS)
def test_processes_do_together_what_one_does_alone(monkeypatch, generator, name: str, num_processes: int, dtype):
    call, takes_alike, gives_alike = CALLS[name]
    x = torch.randn(COUNT, 3, 2 * COUNT, generator=generator, dtype=torch.float64).to(dtype)
    x = (x[0] if takes_alike else x).requires_grad_()
    alone = call(x, COUNT)
    grad = torch.randn(alone.shape, generator=generator, dtype=torch.float64).to(dtype)
    (alone_grad,) = torch.autograd.grad(alone, x, grad)
    together = Together(num_processes)
    monkeypatch.setattr(collective_ops, "dist", together)
    num_local = COUNT // num_processes

    def act(rank: int) -> tuple[Tensor, Tensor]:
        here = slice(rank * num_local, (rank + 1) * num_local)
        mine = (x if takes_alike else x[here]).detach().requires_grad_()
        result = call(mine, num_local)
        return result, *torch.autograd.grad(result, mine, grad if gives_alike else grad[here])

    results, grads = zip(*together.run(act), strict=True)
    for parts, whole, is_alike in ((results, alone, gives_alike), (grads, alone_grad, takes_alike)):
        assert all(part.is_contiguous() for part in parts)
        if is_alike:
            assert all(torch.equal(part, whole) for part in parts)
        else:
            assert torch.equal(torch.cat(parts), whole)


def test_other_numbers_of_processes_than_the_shards_need_are_refused(monkeypatch):
    monkeypatch.setattr(collective_ops, "dist", Together(2))
    for num_local in (1, 2):
        with pytest.raises(ValueError, match=f"lie in {8 // num_local} processes, but torch.distributed has 2"):
            ops.all_reduce(torch.ones(num_local, 3), 8)
    assert ops.all_reduce(torch.ones(8, 3)).tolist() == [8, 8, 8]  # one process may always hold all


def test_a_process_that_died_is_told_of(monkeypatch):
    together = Together(2)

    def fail(*arguments: Any) -> None:
        raise RuntimeError("connection closed")

    monkeypatch.setattr(together, "all_gather", fail)
    monkeypatch.setattr(together, "all_to_all_single", fail)
    for module in (collective_ops, lost_process):
        monkeypatch.setattr(module, "dist", together)
    together.own.rank = 1
    with pytest.raises(RuntimeError, match="Process 1 of 2 could not gather the shards of the others: another"):
        ops.all_reduce(torch.ones(1, 3), 2)
    with pytest.raises(RuntimeError, match="Process 1 of 2 could not exchange rows"):
        ops.all_to_all(torch.ones(1, 2))


@pytest.mark.parametrize("stride", [{}, {"stride": 3}])
def test_the_numbers_of_an_operation_and_of_its_gradient(stride: dict[str, int]):
    """Expect the stride in the gradient too, because it decides the cost of a captured program."""
    seen: list[tuple[str, ...]] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if str(func).startswith("popgeo."):
                seen.append((str(func).split(".")[1], *args[1:]))
            return func(*args, **(kwargs or {}))

    x = torch.randn(2, 3, 4, requires_grad=True)
    n = stride.get("stride", 1)
    for call, *expected in (
        (lambda: ops.all_reduce(x, **stride), ("all_reduce", 2, n), ("replicate", 2, 2, n)),
        (lambda: ops.replicate(x, 5, **stride), ("replicate", 5, 5, n), ("all_reduce", 5, n)),
        (lambda: ops.all_gather(x, **stride), ("all_gather", 2, 0, n), ("shard", 2, 2, 0, n)),
        (lambda: ops.all_gather(x, -1, **stride), ("all_gather", 2, 1, n), ("shard", 2, 2, 1, n)),
        (lambda: ops.shard(x, 2, **stride), ("shard", 2, 2, 0, n), ("all_gather", 2, 0, n)),
        (lambda: ops.shard(x, 2, -1, **stride), ("shard", 2, 2, 2, n), ("all_gather", 2, 2, n)),
        (
            lambda: ops.reduce_scatter(x, 1, **stride),
            ("reduce_scatter", 2, 1, n), ("all_gather", 2, 1, n), ("replicate", 2, 2, n),
        ),
    ):  # fmt: skip
        seen.clear()
        with Watch():
            torch.autograd.grad(call().sum(), x)
        assert seen == expected


def test_a_number_has_as_many_copies_as_shards():
    assert ops.reduce_scatter(torch.ones(3, 6, 2)).shape == (3, 2, 2)
    one = torch.tensor(3.0, requires_grad=True)
    (grad,) = torch.autograd.grad(ops.replicate(one, 3), one, torch.tensor([1.0, 2, 4]))
    assert grad == 7


def test_shapes_are_known_without_data():
    x = FakeTensorMode().from_tensor(torch.empty(2, 6, 5))
    assert ops.all_reduce(x).shape == (6, 5)
    assert ops.replicate(x, 3).shape == (3, 2, 6, 5)
    assert ops.all_gather(x).shape == (12, 5)
    assert ops.all_gather(x, 1).shape == (6, 10)
    assert ops.shard(x, 3, 1).shape == (3, 2, 2, 5)
    assert ops.shard(x, 2).shape == (2, 1, 6, 5)
    assert ops.reduce_scatter(x).shape == (2, 3, 5)
    assert ops.reduce_scatter(x.movedim(1, 2), 1).shape == (2, 5, 3)
    assert ops.all_to_all(x[:, :2]).shape == (2, 2, 5)


def test_rows_are_exchanged_as_a_view_where_all_are_here():
    x = torch.arange(12).reshape(2, 2, 3)
    assert torch.equal(exchange_shards(x), ops.all_to_all(x))
    assert exchange_shards(x).data_ptr() == x.data_ptr()
    assert exchange_shards(x[..., 0]).data_ptr() == x.data_ptr()
    with pytest.raises(ValueError, match="lie in 3 processes"):
        exchange_shards(torch.zeros(1, 3))
    with pytest.raises(ValueError, match="its first two dimensions are"):
        exchange_shards(torch.zeros(3))
    for wrong in (2, 4):
        with pytest.raises(ValueError, match=rf"the local shards and all shards, {wrong} of them"):
            ops.all_to_all(torch.zeros(1, 3), wrong)


@pytest.mark.parametrize(
    ("size", "num_shards", "nearest"),
    [(7, 3, "6 and 9"), (5, 4, "4 and 8"), (3, 4, "4"), (1, 2, "2"), (11, 2, "10 and 12")],
)
def test_the_nearest_sizes_that_can_be_shared_are_named(size: int, num_shards: int, nearest: str):
    with pytest.raises(ValueError, match=rf"Width is {size}, which {num_shards} .* The nearest possible: {nearest}\."):
        part_of(size, num_shards, "Width")


def test_parts_and_counts_at_their_limits():
    assert (part_of(5, 1, "Width"), part_of(0, 3, "Width"), part_of(8, 4, "Width")) == (5, 0, 2)
    with pytest.raises(ValueError, match="num_shards is -1; it must be at least 1"):
        part_of(4, -1, "Width")
    for num_shards, num_local in ((4, 0), (4, -2), (-4, 4), (2, 4), (4, 3)):
        with pytest.raises(ValueError, match=f"There are {num_local} local shards of {num_shards}"):
            ops.replicate(torch.zeros(4), num_shards, num_local=num_local)
    with pytest.raises(ValueError, match="There are 0 local shards of 0"):
        ops.all_reduce(torch.zeros(0, 3))
    x = torch.zeros(2, 3, 4)
    assert ops.all_gather(x, -2).shape == (6, 4)
    for dim in (-3, 2):
        with pytest.raises(ValueError, match=f"dim is {dim}; a shard's tensor has 2 dimensions"):
            ops.all_gather(x, dim)
        with pytest.raises(ValueError, match=f"dim is {dim}; a shard's tensor has 2 dimensions"):
            ops.reduce_scatter(x, dim)
    with pytest.raises(ValueError, match="dim is 3; x has 3 dimensions"):
        ops.shard(x, 2, 3)
    with pytest.raises(ValueError, match="booleans have no sum"):
        ops.reduce_scatter(torch.ones(2, 2, dtype=torch.bool))
