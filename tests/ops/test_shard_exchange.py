"""Collectives over shards: numbers by hand, plain sums and joins, conjugate gradients, one op when captured."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

from popgeo import ipu, ops
from popgeo.ops.shard_exchange import part_of

TWO = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
CALLS = {
    "all_reduce": lambda x: ops.all_reduce(x),
    "replicate": lambda x: ops.replicate(x[0], len(x)),
    "all_gather": lambda x: ops.all_gather(x, 1),
    "shard": lambda x: ops.shard(x[0], len(x), -1),
    "reduce_scatter": lambda x: ops.reduce_scatter(x, -1),
    "all_to_all": lambda x: ops.all_to_all(x.unflatten(-1, (len(x), -1)).movedim(-2, 1)),
}
PLAIN = {
    "all_reduce": lambda x: x.sum(0),
    "replicate": lambda x: torch.stack([x[0]] * len(x)),
    "all_gather": lambda x: torch.cat(list(x), 1),
    "shard": lambda x: torch.stack(x[0].chunk(len(x), -1)),
    "reduce_scatter": lambda x: torch.stack(x.sum(0).chunk(len(x), -1)),
    "all_to_all": lambda x: torch.stack([torch.stack([y.chunk(len(x), -1)[to] for y in x]) for to in range(len(x))]),
}


def shards(count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return random tensors of shards, of odd sizes. [count, 3, 5 * count]."""
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 3, 5 * count, generator=generator, dtype=torch.float64).to(dtype)


def test_by_hand_shards_sum_join_and_cut():
    assert ops.all_reduce(TWO).tolist() == [11.0, 22.0]
    assert ops.all_gather(TWO).tolist() == [1.0, 2.0, 10.0, 20.0]
    assert ops.reduce_scatter(TWO).tolist() == [[11.0], [22.0]]
    assert ops.all_to_all(TWO).tolist() == [[1.0, 10.0], [2.0, 20.0]]
    assert ops.shard(torch.tensor([1.0, 2.0]), 2).tolist() == [[1.0], [2.0]]
    assert ops.replicate(torch.tensor([7.0]), 2).tolist() == [[7.0], [7.0]]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_plain_sums_and_joins(name: str, count: int):
    x = shards(count)
    for laid_out in (x, x.transpose(1, 2).contiguous().transpose(1, 2)):
        result = CALLS[name](laid_out)
        torch.testing.assert_close(result, PLAIN[name](x), rtol=1e-12, atol=1e-12)
        assert result.is_contiguous()  # as captured steps expect of it
        assert result.data_ptr() != laid_out.data_ptr()  # also of a single shard it is a tensor of its own


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_right_and_can_be_differentiated_again(name: str):
    x = shards(3)[:, :1, :6].requires_grad_()
    assert gradcheck(CALLS[name], x)
    assert gradgradcheck(CALLS[name], x)


@pytest.mark.parametrize("name", CALLS)
def test_it_is_one_operation_when_captured_and_its_gradient_the_conjugate(name: str):
    conjugate = {
        "all_reduce": {"replicate"}, "replicate": {"all_reduce"}, "all_gather": {"shard"}, "shard": {"all_gather"},
        "reduce_scatter": {"all_gather", "replicate"}, "all_to_all": {"all_to_all"},
    }  # fmt: skip
    x = shards(2, torch.float32)

    def gradient(calls: dict[str, Callable[[Tensor], Tensor]], x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad((calls[name](x) ** 2).sum(), x)[0]

    compiled = ipu.compile(lambda x: gradient(CALLS, x), [x])
    found = [op.target.split(".")[1] for op in compiled.graph.ops if op.target.startswith("popgeo.")]
    assert found[0] == name
    assert set(found[1:]) == conjugate[name]
    assert torch.equal(compiled(x), gradient(PLAIN, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sums_go_from_shard_to_shard_whatever_the_number_of_threads(dtype: torch.dtype):
    x = shards(4, dtype)
    expected = x[0].float()
    for one in x[1:]:
        expected = expected + one.float()
    assert torch.equal(ops.all_reduce(x), expected.to(dtype))
    assert torch.equal(ops.reduce_scatter(x, -1).movedim(0, -2).flatten(-2), expected.to(dtype))


def test_torch_s_own_checks_of_the_ops_pass():
    x = shards(2, torch.float32).requires_grad_()
    packets, quick = torch.ops.popgeo, ("test_schema", "test_autograd_registration", "test_faketensor")
    for packet, numbers in (("all_reduce", (2, 1)), ("reduce_scatter", (2, 1, 1))):
        torch.library.opcheck(getattr(packets, packet).default, (x, *numbers), test_utils=quick)


def test_one_of_several_shards_has_shapes_but_no_result_in_a_single_process():
    with FakeTensorMode():
        one = torch.empty(1, 3, 8)
        assert ops.all_reduce(one, 4).shape == (3, 8)
        assert ops.all_gather(one, -1, 4).shape == (3, 32)
        assert ops.reduce_scatter(one, -1, 4).shape == (1, 3, 2)
        assert ops.replicate(one[0], 4, num_local=1).shape == (1, 3, 8)
        assert ops.shard(one[0], 4, 1, num_local=1).shape == (1, 3, 2)
    with pytest.raises(ValueError, match=r"lie in 4 processes, but torch\.distributed has 1"):
        ops.all_reduce(torch.zeros(1, 3), 4)


def test_what_cannot_be_shared_evenly_is_refused_with_the_nearest_that_can():
    with pytest.raises(ValueError, match=r"Dimension 0 of x is 10, which 4 shards cannot .* The nearest .*: 8 and 12"):
        ops.shard(torch.zeros(10), 4)
    with pytest.raises(ValueError, match="The nearest possible: 4"):
        part_of(3, 4, "Width")
    with pytest.raises(ValueError, match=r"Dimension 0 of a shard's tensor is 3"):
        ops.reduce_scatter(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="2 local shards of 3"):
        ops.all_reduce(torch.zeros(2, 3), 3)
    with pytest.raises(ValueError, match="no dimension of shards"):
        ops.all_gather(torch.tensor(1.0))
    with pytest.raises(ValueError, match="dim is 2; a shard's tensor has 1"):
        ops.all_gather(torch.zeros(2, 3), 2)
    with pytest.raises(ValueError, match="booleans have no sum"):
        ops.all_reduce(torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"has the shape \(4,\)"):
        ops.all_to_all(torch.zeros(4))
    with pytest.raises(ValueError, match="num_shards is 0"):
        ops.shard(torch.zeros(4), 0)
    with pytest.raises(ValueError, match="4 local shards of 0"):
        ops.replicate(torch.zeros(4), 0, num_local=4)
