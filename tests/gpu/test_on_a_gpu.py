"""Tests that need a GPU: kernels with the same bits in each run, batches fed ahead, NCCL. Skipped without a GPU."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import popgeo
from popgeo import ops
from popgeo.engine.backend import Backend
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.cuda_graph import StaticInputs
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_recipe import Recipe
from popgeo.ops import reference, sum_on_device
from popgeo.ops.scatter_plan import ScatterPlan
from tests.support.captured_on_ranks import Forces, make_call

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device"),
    pytest.mark.filterwarnings("default"),  # a warning of torch or Triton that is new is no failure
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_sums_have_the_same_bits_in_each_run_and_are_right(dtype: torch.dtype):
    torch.manual_seed(0)
    values, index = torch.randn(20_000, 33).to(dtype), torch.randint(500, (20_000,))
    there, rows = values.cuda(), index.cuda()
    totals = [ops.scatter(there, rows, 0, dim_size=500) for _ in range(5)]
    assert all(torch.equal(one, totals[0]) for one in totals)
    torch.testing.assert_close(totals[0].cpu(), reference.scatter_sum(values, index, 500), rtol=1e-2, atol=1e-2)
    plan = ScatterPlan.from_index(rows, 500)
    assert torch.equal(ops.scatter(there, rows, 0, dim_size=500, plan=plan), totals[0])
    in_torch = sum_on_device.reduce_in_torch(there, plan.rowptr, plan.perm)
    torch.testing.assert_close(in_torch, totals[0], rtol=1e-2, atol=1e-2)


def test_cfconv_and_its_gradients_are_those_of_the_processor():
    torch.manual_seed(0)
    x, w, (src, dst) = torch.randn(50, 70), torch.randn(900, 70), torch.randint(50, (2, 900))
    results = []
    for device in ("cpu", "cuda"):
        leaves = [tensor.to(device).requires_grad_() for tensor in (x, w)]
        out = ops.cfconv(*leaves, src.to(device), dst.to(device), 50)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for there, here in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("half_list", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("with_directions", [False, True])
def test_interactions_are_those_of_the_processor_with_the_same_bits_in_each_run(
    dtype: torch.dtype, half_list: bool, with_directions: bool
):
    torch.manual_seed(0)
    of_x, kinds = (5, 3) if with_directions else (1, 1)
    x, r, (src, dst) = torch.randn(200, 70 * of_x), 6 * torch.rand(20_000), torch.randint(200, (2, 20_000))
    directions = [nn.functional.normalize(torch.randn(20_000, 3), dim=1)] if with_directions else []
    grid = torch.linspace(0, 5, 193, dtype=torch.float64)
    basis, waves = torch.stack([grid.sin(), (grid / 2).cos()], 1), torch.randn(2, 70 * kinds, dtype=torch.float64)

    def passes(device: str) -> list[Tensor]:
        given = (x.to(dtype), waves, r.to(dtype), *(one.to(dtype) for one in directions))
        leaves = [t.to(device).requires_grad_() for t in given]
        table, towards = basis.to(device) @ leaves[1], dict(zip(["direction"], leaves[3:], strict=False))
        ends = src.to(device), dst.to(device)
        out = ops.interaction(leaves[0], table, leaves[2], *ends, 200, 5.0, half_list=half_list, **towards)
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(first[i].square().sum() for i in (0, *range(2, len(leaves)))), leaves)
        return [t.detach().cpu() for t in (out, *first, *second)]

    there, again = passes("cuda"), passes("cuda")
    assert all(map(torch.equal, there, again))
    for one, other in zip(there, passes("cpu"), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * other.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_neighbors_are_in_the_slots_of_the_processor(dtype: torch.dtype):
    torch.manual_seed(0)
    batch = torch.arange(3).repeat_interleave(torch.tensor([900, 1, 400]))
    for pos in (torch.randint(9, (1301, 3)), 9 * torch.rand(1301, 3)):
        for search, size in ((ops.knn, {"k": 9}), (ops.radius, {"num_edges": 20_000}), (ops.pairs, {})):
            here, there = (
                search(pos.to(device, dtype), batch.to(device), cutoff=2.0, num_graphs=3, **size)
                for device in ("cpu", "cuda")
            )
            here, there = ((one[0], one[1]) if search is ops.radius else (one, batch) for one in (here, there))
            assert all(torch.equal(one, other.cpu()) for one, other in zip(here[0][::2], there[0][::2], strict=True))
            torch.testing.assert_close(here[0].edge_weight, there[0].edge_weight.cpu())
            assert torch.equal(here[1], there[1].cpu())


def test_products_and_forces_of_edges_have_the_same_bits_in_each_run():
    torch.manual_seed(0)
    values, pos, edge_index = torch.rand(20_000, 7) + 0.5, torch.randn(500, 3), torch.randint(500, (2, 20_000))
    results = []
    for _ in range(5):
        product = ops.scatter_mul(values.cuda(), edge_index[0].cuda(), 0, dim_size=500)
        there = pos.cuda().requires_grad_()
        length = ops.distance(there, edge_index.cuda(), None, 9.0)
        results.append((product, *torch.autograd.grad(length.square().sum(), there)))
    assert all(torch.equal(a, b) for other in results for a, b in zip(other, results[0], strict=True))
    expected = ops.scatter_mul(values, edge_index[0], 0, dim_size=500)
    torch.testing.assert_close(results[0][0].cpu(), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_extremes_and_softmax_are_those_of_the_processor_with_the_same_bits_in_each_run(dtype: torch.dtype):
    torch.manual_seed(0)
    values, index = torch.randint(-50, 50, (20_000, 33)).to(dtype) / 8, torch.randint(500, (20_000,))  # with ties

    def passes(device: str) -> list[Tensor]:
        src, rows = values.to(device).requires_grad_(), index.to(device)
        largest, at = ops.scatter_max(src, rows, 0, dim_size=500)
        smallest, _ = ops.scatter_min(src, rows, 0, dim_size=500)
        weight = ops.scatter_softmax(src, rows, 0, dim_size=500)
        first = torch.autograd.grad((largest * smallest).sum() + weight.sin().sum(), src, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), src)
        return [t.detach().cpu() for t in (at, largest, smallest, weight, *first, *second)]

    there, again, here = passes("cuda"), passes("cuda"), passes("cpu")
    assert all(map(torch.equal, there, again))
    assert all(map(torch.equal, there[:3], here[:3]))
    close = {"rtol": 0.1, "atol": 0.1} if dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    for one, other in zip(there[3:], here[3:], strict=True):
        torch.testing.assert_close(one, other, **close)


def test_batches_arrive_whole_and_ahead():
    molecules = popgeo.Molecules()[:300]
    plain, fed = (popgeo.FixedSizeDataLoader(molecules, 17, shuffle=True, device=one) for one in (None, "cuda"))
    for ours, theirs in zip(fed, plain, strict=True):
        assert ours.x.is_cuda
        assert all(torch.equal(ours[name].cpu(), value) for name, value in theirs if isinstance(value, Tensor))


def test_batches_of_one_block_stay_right_while_the_device_lags_behind():
    molecules = popgeo.Molecules()[:600]
    plain, fed = (popgeo.FixedSizeDataLoader(molecules, 17, shuffle=True, seed=0, device=one) for one in (None, "cuda"))
    inputs = None
    for _ in range(2):
        kept, copied = [], []
        for batch in fed:
            torch.cuda._sleep(1_000_000)  # about half a millisecond
            tensors = [batch.pos, batch.x, batch.batch]
            inputs = inputs or StaticInputs(tensors, torch.device("cuda"))
            inputs.fill(tensors)
            kept.append(batch)
            copied.append([tensor.clone() for tensor in inputs.tensors])
        for ours, (pos, x, owner), theirs in zip(kept, copied, plain, strict=True):
            assert all(torch.equal(ours[name].cpu(), value) for name, value in theirs if isinstance(value, Tensor))
            assert all(map(torch.equal, (pos.cpu(), x.cpu(), owner.cpu()), (theirs.pos, theirs.x, theirs.batch)))
    assert all(stage.host.memory.is_pinned() for stage in fed._feed._idle[0]._stages)


def test_a_graph_holds_the_exchange_by_nccl_of_gradients(tmp_path):
    # A group of one process, whose sum is its own gradient; the step takes it for one of two processes.
    torch.manual_seed(0)
    model = Forces().cuda()
    twin = copy.deepcopy(model)
    own, optimizer = (torch.optim.SGD(one.parameters(), lr=2**-5) for one in (model, twin))
    recipe = Recipe(function=model, optimizer=own, options=popgeo.StepOptions(), backend=Backend.CUDA)
    step = CompiledStep(recipe, Replicas((0,), 2))
    dist.init_process_group("nccl", f"file://{tmp_path / 'meeting'}", world_size=1, rank=0)
    try:
        for number in range(8):
            pos, y = make_call(number, 1)[0]
            step(pos, y)
            optimizer.zero_grad()
            twin(pos.cuda(), y.cuda()).backward()
            optimizer.step()
        assert "one CUDA graph, captured once" in repr(step)
    finally:
        step.reset()  # the graph holds NCCL's kernels
        dist.destroy_process_group()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
