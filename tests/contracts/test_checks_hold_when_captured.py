"""Values that eager code refuses are refused, or give NaN, in captured code: every check of values in the package.

The test searches the sources for checks of values, so every new check needs a case here.
"""

import ast
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from popgeo import compile_forward, compile_step, ops
from popgeo.nn import (
    GIN,
    KNNInteractionGraph,
    PaiNN,
    PairInteractionGraph,
    RadiusInteractionGraph,
    SchNet,
    loss,
    metrics,
)
from popgeo.nn.graph_attention import GraphAttention, SameGraph
from popgeo.ops import ScatterPlan
from popgeo.ops.refusals import require
from tests.contracts.test_imports import FILES, PACKAGE, parsed, text_of

SORTED, UNSORTED, LARGE = (torch.tensor(graph) for graph in ([0, 0, 0, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 1]))
POS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
NAN, INFINITE = (torch.where(torch.arange(15).view(5, 3) == 7, value, POS) for value in (torch.nan, torch.inf))
Z, X = torch.ones(5, dtype=torch.long), torch.arange(10.0).view(5, 2)
# The mark of functions that check values only in eager code, because the called operation checks them again.
ONLY_EAGER = " (only in eager code)"
LOOKS_AGAIN = {"ops/channel_rows.py:of", "ops/segment.py:gather_coo", "ops/segment.py:_mean"}


def found_by(search: Callable, **sizes: int) -> Callable[[Tensor, Tensor], Tensor]:
    def find(pos: Tensor, batch: Tensor) -> Tensor:
        made = search(pos, batch, cutoff=5.0, num_graphs=2, max_num_nodes=3, **sizes)
        return (made[0] if isinstance(made[0], tuple) else made).edge_weight

    return find


def model_with(graph: nn.Module, kind: type[nn.Module] = SchNet) -> Callable[..., Tensor]:
    torch.manual_seed(0)
    model = kind(8, num_interactions=1, cutoff=5.0, interaction_graph=graph)
    return lambda z, pos, batch: model(z, pos, batch, num_graphs=2)


def model_of_edges(kind: type[nn.Module]) -> Callable[..., Tensor]:
    torch.manual_seed(0)
    model = kind(8)
    return lambda z, pos, edge_index: model(z, pos, None, edge_index, num_graphs=1)


def model_of_listed(kind: type[nn.Module], k: int) -> Callable[..., Tensor]:
    torch.manual_seed(0)
    model = kind(8, cutoff=5.0, interaction_graph=KNNInteractionGraph(k, 5.0))
    return lambda z, pos, edges, listed, pbc: model(z, pos, None, edges, num_graphs=1, cutoff=listed, pbc=pbc)


def model_of_cells(kind: type[nn.Module]) -> Callable[..., Tensor]:
    torch.manual_seed(0)
    model = kind(8, cutoff=5.0)
    return lambda z, pos, cell: model(z, pos, num_graphs=1, cell=cell)


def attention(form: str) -> Callable[..., Tensor]:
    torch.manual_seed(0)
    layer = GraphAttention(2)
    return lambda x, batch: layer(x, SameGraph.of(batch, 2, max_num_nodes=3, form=form))


def masked_edges() -> Callable[..., Tensor]:
    torch.manual_seed(0)
    model = GIN(2, 4, 2)
    return lambda x, edges, nodes: model(x, RING, nodes_mask=nodes, edges_mask=edges)


RING, LOOP = torch.tensor([[0, 1, 2, 3, 4], [1, 0, 3, 2, 3]]), torch.tensor([[0, 1, 2, 3, 4], [1, 0, 2, 2, 3]])
FULL = torch.tensor([[1, 2, 3, 0, 0, 0], [0, 0, 0, 1, 2, 3]])
LONG, SHORT, NEVER = torch.tensor([5.0]), torch.tensor([4.9]), torch.zeros(1, 3, dtype=torch.bool)
CLIMBS, DESCENDS, LEAVES = (torch.tensor(pointers) for pointers in ([0, 2, 3, 5], [0, 3, 2, 5], [0, 2, 3, 6]))
INDEX, OUTSIDE, NEGATIVE = (torch.tensor(index) for index in ([0, 2, 1, 1, 0], [0, 2, 3, 1, 0], [0, 2, -1, 1, 0]))
LOGITS, CLASSES, LABELS = X, torch.tensor([0, 1, 1, 0, 1]), torch.tensor([0.0, 1, 1, 0, 1])
PADDED = torch.tensor([True, True, True, True, False])
WIDE = INDEX.unsqueeze(1).repeat(1, 2)

NOWHERE = [(NAN, SORTED), (INFINITE, SORTED)]
# The function, valid arguments, and refused arguments.
CASES: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], list[tuple[Tensor, ...]]]] = {
    "knn": (found_by(ops.knn, k=2), (POS, SORTED), [(POS, LARGE), (POS, UNSORTED), *NOWHERE]),
    "pairs": (found_by(ops.pairs), (POS, SORTED), [(POS, LARGE), (POS, UNSORTED), *NOWHERE]),
    "radius": (found_by(ops.radius, num_edges=9), (POS, SORTED), [(POS, LARGE), (POS, UNSORTED), *NOWHERE]),
    "slots": (model_with(RadiusInteractionGraph(5.0, 8)), (Z, POS * 0.1, SORTED), [(Z, POS * 0.1, LARGE)]),
    "SchNet with a window": (
        model_with(PairInteractionGraph(5.0, 3)),
        (Z, POS, SORTED),
        [(Z, POS, LARGE), (Z, NAN, SORTED)],
    ),
    "PaiNN with a window": (
        model_with(PairInteractionGraph(5.0), PaiNN),
        (Z, POS, SORTED),
        [(Z, POS, UNSORTED), (Z, INFINITE, SORTED)],
    ),
    "SchNet without shifts": (model_of_edges(SchNet), (Z, POS, RING), [(Z, POS, LOOP)]),
    "PaiNN without shifts": (model_of_edges(PaiNN), (Z, POS, RING), [(Z, POS, LOOP)]),
    "SchNet of listed pairs": (
        model_of_listed(SchNet, 2),
        (Z, POS, RING, LONG, NEVER),
        [(Z, POS, RING, SHORT, NEVER), (Z, POS, RING, LONG, ~NEVER), (Z, POS * 0.1, FULL, LONG, NEVER)],
    ),
    "PaiNN of listed pairs": (
        model_of_listed(PaiNN, 2),
        (Z, POS, RING, LONG, NEVER),
        [(Z, POS, RING, SHORT, NEVER), (Z, POS, RING, LONG, ~NEVER), (Z, POS * 0.1, FULL, LONG, NEVER)],
    ),
    "SchNet of a cell": (model_of_cells(SchNet), (Z, POS, 0 * POS[:3]), [(Z, POS, POS[:3])]),
    "padded attention": (attention("padded"), (X, SORTED), [(X, LARGE), (X, UNSORTED)]),
    "packed attention": (attention("pack"), (X, SORTED), [(X, UNSORTED)]),
    "pointers": (lambda x, p: ops.segment_csr(x, p, reduce="max"), (X, CLIMBS), [(X, DESCENDS), (X, LEAVES)]),
    "sums by pointers": (ops.segment_csr, (X, CLIMBS), [(X, DESCENDS), (X, LEAVES)]),
    "classes": (loss.cross_entropy, (LOGITS, CLASSES), [(LOGITS, CLASSES + 1), (LOGITS, CLASSES - 1)]),
    "labels": (loss.binary_cross_entropy, (LOGITS[:, 0], LABELS), [(LOGITS[:, 0], LABELS * 2 - 1)]),
    "right classes": (metrics.accuracy, (LOGITS, CLASSES), [(LOGITS, CLASSES + 1), (LOGITS, CLASSES - 1)]),
    "ranks": (metrics.roc_auc, (LOGITS[:, 0], LABELS), [(LOGITS[:, 0], LABELS * 2 - 1), (LOGITS[:, 0], LABELS + 1)]),
    "precision": (metrics.average_precision, (LOGITS[:, 0], LABELS), [(LOGITS[:, 0], LABELS * 2 - 1)]),
    "scatter": (lambda x, i: ops.scatter(x, i, 0, dim_size=3), (X, INDEX), [(X, OUTSIDE), (X, NEGATIVE)]),
    "wide scatter": (lambda x, i: ops.scatter(x, i, 0, dim_size=3), (X, WIDE), [(X, WIDE + 1), (X, WIDE - 1)]),
    "wide gather": (ops.gather_coo, (X[:3].T, WIDE.T), [(X[:3].T, WIDE.T + 1), (X[:3].T, WIDE.T - 1)]),
    "masked edges": (masked_edges(), (X, PADDED, PADDED), [(X, PADDED, Z > 0)]),
    "gather": (ops.gather, (X[:3], INDEX), [(X[:3], OUTSIDE), (X[:3], NEGATIVE)]),
}  # fmt: skip


class Function(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(()))

    def forward(self, *arguments: Tensor) -> Tensor:
        return self.function(*arguments) * self.scale


def refuses(run: Callable[..., Tensor], arguments: tuple[Tensor, ...]) -> bool:
    """Check whether a call raises an error or returns NaN."""
    try:
        result = run(*arguments)
    except (ValueError, RuntimeError, IndexError):
        return True
    return bool(result.isnan().any())


@pytest.mark.parametrize("name", CASES)
def test_what_eager_code_refuses_is_refused_or_nan_when_compiled(name):
    function, right, wrong = CASES[name]
    model = Function(function)
    expected = model(*right).detach()
    compiled = compile_forward(model)
    torch.testing.assert_close(compiled(*right), expected)
    for arguments in wrong:
        with pytest.raises((ValueError, RuntimeError, IndexError)):
            model(*arguments)
        assert refuses(compiled, arguments)
    torch.testing.assert_close(compiled(*right), expected)  # a valid call still works


@pytest.mark.parametrize("name", ["pairs", "SchNet without shifts", "padded attention", "classes"])
def test_what_eager_code_refuses_is_nan_in_training_too(name):
    function, right, wrong = CASES[name]
    model = Function(lambda *arguments: function(*arguments).sum())
    step = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.0))
    assert step(*right).isfinite()
    assert refuses(step, wrong[0])


@pytest.mark.parametrize("reduce", ["sum", "mean", "mul", "min", "max"])
def test_a_plan_of_another_index_is_never_used(reduce):
    plan = ScatterPlan.from_index(torch.tensor([0, 0, 1, 2, 2]), 3)

    def reduced(x: Tensor, index: Tensor) -> Tensor:
        return ops.scatter(x, index, 0, dim_size=3, reduce=reduce, plan=plan)

    with pytest.raises(ValueError, match="plan was made for another index"):
        reduced(X, INDEX)
    expected = ops.scatter(X, INDEX, 0, dim_size=3, reduce=reduce)
    torch.testing.assert_close(compile_forward(Function(reduced))(X, INDEX), expected)


def checks_of(path: Path) -> Iterator[str]:
    """Yield the functions of a file that call `require`, and functions that raise only in eager code."""
    has_require = "from popgeo.ops.refusals import require" in text_of(path)
    for node in ast.walk(parsed(text_of(path))):
        if isinstance(node, ast.FunctionDef):
            place = f"{path.relative_to(PACKAGE).as_posix()}:{node.name}"
            if has_require and any(isinstance(part, ast.Call) and _name(part) == "require" for part in ast.walk(node)):
                yield place
            elif any(_asks_for_eager(part) for part in ast.walk(node) if isinstance(part, ast.If)):
                yield place + ONLY_EAGER


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _asks_for_eager(branch: ast.If) -> bool:
    asks = any(
        isinstance(p, ast.Call) and _name(p) in {"is_direct", "is_plain", "is_eager"} for p in ast.walk(branch.test)
    )
    refused = any(
        isinstance(part, ast.Raise)
        or (isinstance(part, ast.Call) and _name(part).startswith(("refuse", "check", "_check")))
        for statement in branch.body
        for part in ast.walk(statement)
    )
    return (
        asks and refused and not isinstance(branch.test, ast.UnaryOp)
    )  # a negated test refuses code that cannot be captured


def test_every_check_of_values_has_a_case(monkeypatch):
    places = {place for path in FILES for place in checks_of(path)}
    only_eager = {place.removesuffix(ONLY_EAGER) for place in places if place.endswith(ONLY_EAGER)}
    assert only_eager == LOOKS_AGAIN, "use popgeo.ops.refusals.require, which protects captured code, too"
    refused: set[str] = set()

    def noted(holds: Tensor, value: Tensor, reason: Callable[[], str]) -> Tensor:
        code = sys._getframe(1).f_code
        if not holds.all():
            refused.add(f"{Path(code.co_filename).relative_to(PACKAGE).as_posix()}:{code.co_name}")
        return require(holds, value, reason)

    for place in places - {place + ONLY_EAGER for place in only_eager}:
        module = place.partition(":")[0].removesuffix(".py").replace("/", ".")
        monkeypatch.setattr(importlib.import_module(f"popgeo.{module}"), "require", noted)
    for function, _, wrong in CASES.values():
        for arguments in wrong:
            with contextlib.suppress(ValueError, RuntimeError, IndexError):
                function(*arguments)
    assert refused == places - {place + ONLY_EAGER for place in only_eager}
