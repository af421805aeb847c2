"""All public operations and models, as a GPU runs them: no operation of torch that adds floats in random order.

Tensors in memory say here that they are on a GPU. With TRITON_INTERPRET=1 Triton's kernels run, otherwise plain torch.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from popgeo import ops
from popgeo.native import library
from popgeo.nn import PaiNN, SchNet, energy_forces_and_stress
from popgeo.nn.norm import NORMS
from popgeo.ops import eager, sum_on_device
from tests.contracts.test_models import MODELS, make_batch, make_model, pad, predict
from tests.nn import test_forces
from tests.nn.models import test_nbfnet

# torch runs these on CUDA by atomic additions, or by a scan whose order differs between runs.
ATOMIC = {"index_add", "index_reduce", "scatter_add", "scatter_reduce", "put", "embedding_dense_backward", "bincount"}
ATOMIC |= {"cumsum", "cumprod", "logcumsumexp", "histc"}
ACCUMULATE = {"index_put", "_index_put_impl", "_unsafe_index_put"}  # so does each of these with accumulate=True

SRC, DST = torch.tensor([[2, 0, 1, 2, 0, 1], [1, 1, 0, 3, 1, 0]])
PER_ENTRY = torch.tensor([[0, 1], [1, 1], [0, 3], [2, 0], [3, 3], [1, 0]])
INDPTR = torch.tensor([1, 3, 3, 5])
PLAN = ops.ScatterPlan.from_index(DST, 4)
X, EDGES = torch.linspace(-1, 2, 8).view(4, 2), torch.linspace(-2, 1, 12).view(6, 2).sin()
POS, BATCH = torch.linspace(0, 3, 12).square().cos().view(4, 3), torch.tensor([0, 0, 0, 1])
TABLE = torch.linspace(0, 1, 33, dtype=torch.float64).sin().repeat(2, 1).t()
MASK = torch.tensor([True, True, True, False])
Case = tuple[Any, ...]  # a function and its tensors


def scatters(function: Callable[..., Any], **more: Any) -> Case:
    """Reduce with a plan, without a plan, and with an index per entry."""

    def run(edges: Tensor) -> list[Any]:
        shared = [function(edges, DST, 0, dim_size=4, plan=plan, **more) for plan in (PLAN, None)]
        return [*shared, function(edges, PER_ENTRY, 0, dim_size=4, **more)]

    return run, EDGES


def pools(function: Callable[..., Any]) -> Case:
    return partial(function, batch=BATCH, num_graphs=2), X


def finds(function: Callable[..., Any], **more: Any) -> Case:
    """Return the lengths that a search for neighbors finds."""

    def run(pos: Tensor) -> Tensor:
        found = function(pos, BATCH, cutoff=2.0, num_graphs=2, **more)
        return (found[0] if function is ops.radius else found).edge_weight

    return run, POS


def shards(function: Callable[..., Any], *more: Any) -> Case:
    return (lambda x: function(x, *more)), X.view(2, 2, 2)


def public(start: str) -> Iterator[str]:
    return (name for name, value in vars(ops).items() if name.startswith(start) and inspect.isfunction(value))


CASES: dict[str, Case] = {
    **{name: scatters(getattr(ops, name)) for name in public("scatter_")},
    **{f"scatter, {how}": scatters(ops.scatter, reduce=how) for how in ("sum", "mean", "mul", "min", "max")},
    "scatter, complex": ((lambda e: ops.scatter(torch.complex(e, e.sin()), DST, 0, dim_size=4).abs()), EDGES),
    **{name: (partial(getattr(ops, name), indptr=INDPTR), EDGES) for name in public("segment_") if "csr" in name},
    **{name: pools(getattr(ops, name)) for name in public("global_")},
    "segment_coo": (lambda e: [ops.segment_coo(e, DST.sort()[0], None, 4, how) for how in ("mean", "max")], EDGES),
    "cfconv": (lambda x, w: ops.cfconv(x, w, SRC, DST, 4), X, EDGES),
    "cfconv, complex": (
        lambda x, w: ops.cfconv(*(torch.complex(t, t.sin()) for t in (x, w)), SRC, DST, 4).abs(),
        X,
        EDGES,
    ),
    "distance": (lambda pos: ops.distance(pos, torch.stack([SRC, DST]), None, 9.0), POS),
    "gather": (lambda x: [ops.gather(x, SRC), ops.gather(x, SRC % 2, 1)], X),
    "gather_coo": (lambda x: [ops.gather_coo(x, SRC), ops.gather_coo(x, PER_ENTRY[:4] % 2)], X),
    "gather_csr": (lambda x: ops.gather_csr(x, INDPTR), X[:3]),
    "interaction": (lambda x, table, r: ops.interaction(x, table, r, SRC, DST, 4, 2.0), X, TABLE, EDGES[:, 0].abs()),
    "knn": finds(ops.knn, k=2),
    "pairs": finds(ops.pairs),
    "radius": finds(ops.radius, num_edges=9),
    "round_stochastic": (lambda x: ops.round_stochastic(x.detach(), torch.tensor(7)), X),
    "shifted_softplus": (ops.shifted_softplus, X),
    "all_reduce": shards(ops.all_reduce),
    "all_gather": shards(ops.all_gather),
    "all_to_all": shards(ops.all_to_all),
    "reduce_scatter": shards(ops.reduce_scatter),
    "replicate": shards(ops.replicate, 2),
    "shard": shards(ops.shard, 2),
    **{
        f"nn, {name}": (partial(norm(2), batch=BATCH, num_graphs=2, nodes_mask=MASK), X) for name, norm in NORMS.items()
    },
}


class Watch(TorchDispatchMode):
    """A record of operations on floats in random order, and a count of sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.atomic: set[str] = set()
        self.num_sorts = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        self.num_sorts += name in ("sort", "argsort")
        adds = name in ATOMIC or (name in ACCUMULATE and (*args, *(kwargs or {}).values())[3:4] == (True,))
        if adds and any(isinstance(t, Tensor) and not_integer(t) for t in tree_leaves((args, kwargs))):
            self.atomic.add(name)
        return func(*args, **(kwargs or {}))


def not_integer(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def passes(function: Callable[..., Any], *tensors: Tensor) -> list[Tensor]:
    """Return the results of a function with gradients and their gradients."""
    leaves = [t.clone().requires_grad_() for t in tensors]
    made = [t for t in tree_leaves(function(*leaves)) if isinstance(t, Tensor)]
    outs = [t for t in made if t.requires_grad]
    if not outs:
        return made
    first = torch.autograd.grad(sum(t.sin().sum() for t in outs), leaves, create_graph=True)
    second = torch.autograd.grad(sum(t.square().sum() for t in first), leaves, allow_unused=True)
    return [t.detach() for t in (*made, *first, *second) if t is not None]


def say_on_a_gpu(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(torch.Tensor, "is_cuda", property(lambda t: True))
    patched.setattr(torch.Tensor, "is_cpu", property(lambda t: False))
    patched.setattr(library, "packed", lambda name: None)
    # The mode that watches is no trace: all calls stay on the eager path.
    stands = {"_len_torch_dispatch_stack": lambda: 0, "_get_tracing_state": lambda: None}
    patched.setattr(eager, "_C", SimpleNamespace(**stands))
    if os.environ.get("TRITON_INTERPRET") != "1":
        patched.setattr(sum_on_device, "triton_kernels", lambda *file: None)


def watched(run: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Watch]:
    with pytest.MonkeyPatch.context() as patched, Watch() as watch:
        say_on_a_gpu(patched)
        return run(), watch


def test_all_public_operations_are_watched():
    functions = set(public(""))
    assert functions == {name.partition(",")[0] for name in CASES} - {"nn"}


@pytest.mark.parametrize("name", CASES)
def test_no_operation_adds_floats_in_random_order(name: str):
    made, watch = watched(lambda: passes(*CASES[name]))
    assert not watch.atomic
    for one, other in zip(made, passes(*CASES[name]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_call_and_its_gradients_share_one_sort():
    for case in (
        *(CASES[f"nn, {name}"] for name in ("graph_norm", "instance_norm")),
        *(CASES[name] for name in ("global_softmax", "global_max_pool", "global_mean_pool")),
        *(
            (partial(getattr(ops, f"scatter_{name}"), index=DST, dim=0, dim_size=4), EDGES)
            for name in ("std", "log_softmax")
        ),
    ):
        assert watched(lambda case=case: passes(*case))[1].num_sorts == 1


def test_an_atomic_addition_would_be_seen():
    for function, name in (
        (lambda x: x.index_select(0, SRC), "index_add"),
        (lambda x: x.gather(0, SRC.unsqueeze(1)), "scatter_add"),
        (lambda x: x[SRC], "index_put"),
        (lambda x: x.cumsum(0), "cumsum"),
    ):
        assert name in watched(lambda function=function: passes(function, X))[1].atomic


def gradients(model: nn.Module) -> list[Tensor]:
    """Return the loss of a training step, of forces too for a model of atoms, and its gradients."""
    batch = pad(make_batch(), 7, 7, 2)
    pos = batch.pos.double().requires_grad_()
    loss = predict(model, replace(batch, pos=pos)).square().sum()
    if isinstance(model, SchNet | PaiNN):
        (forces,) = torch.autograd.grad(loss, pos, create_graph=True)
        loss = loss + forces.square().sum()
    of_weights = torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
    return [loss.detach(), *(t for t in of_weights if t is not None)]


def of_paths(aggregation: str) -> list[Tensor]:
    model, q = test_nbfnet.make_model(aggregation), test_nbfnet.make_questions()
    out = test_nbfnet.scores(model, q, tails=torch.stack([q.tail, q.head], 1))
    return [out.detach(), *torch.autograd.grad(out.sum(), [*model.parameters()])]


def of_stress() -> list[Tensor]:
    torch.manual_seed(0)
    model, (z, pos), cell = make_model("SchNet, pairs"), test_forces.crystal(), test_forces.CELL
    edges, shift = test_forces.neighbors(pos, cell)
    found = energy_forces_and_stress(
        model, z, pos, torch.zeros_like(z), edges, edge_shift=shift, cell=cell[None], num_graphs=1
    )
    return [
        *found,
        *torch.autograd.grad(sum(t.square().sum() for t in found), [*model.parameters()], allow_unused=True),
    ]


STEPS: dict[str, Callable[[], list[Tensor]]] = {
    **{name: lambda name=name: gradients(make_model(name)) for name in MODELS},
    "NBFNet, sum": partial(of_paths, "sum"),
    "NBFNet, pna": partial(of_paths, "pna"),
    "stress": of_stress,
}


@pytest.mark.parametrize("name", STEPS)
def test_a_training_step_of_a_model_adds_no_floats_in_random_order(name: str):
    made, watch = watched(STEPS[name])
    assert watch.atomic <= {"embedding_dense_backward"}  # torch sorts for it on CUDA
    for one, other in zip(made, STEPS[name](), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)
