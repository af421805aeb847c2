"""Infinite numbers, NaN and empty groups in every reduction, softmax, loss, metric and norm, compared with torch.

Each function runs on all groups at once, eagerly, without the kernels, and captured, and is compared with torch in
float64 on one group after the other.
"""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from popgeo import compile_forward, ops
from popgeo.nn import BatchNorm, GraphNorm, GraphSAGE, InstanceNorm, LayerNorm, metrics
from popgeo.nn import loss as losses
from popgeo.nn.class_metrics import f1_score
from tests.contracts.test_checks_hold_when_captured import Function

INF, NAN = torch.inf, torch.nan
GROUPS = [
    [], [1, 2], [-INF], [INF], [NAN], [-INF, -INF], [INF, INF], [INF, -INF], [NAN, 1], [1, NAN], [-INF, 1], [INF, 1],
    [-INF, NAN], [INF, NAN], [3], [-2, -3], [0, 0], [NAN, NAN], [-50, 0], [], [-INF, 1, INF, 2], [2, NAN, -INF],
]  # fmt: skip
NUMBER = len(GROUPS)
VALUES = torch.tensor([float(value) for group in GROUPS for value in group])
INDEX = torch.tensor([number for number, group in enumerate(GROUPS) for _ in group])
POINTERS = torch.tensor([0, *torch.tensor([len(group) for group in GROUPS]).cumsum(0).tolist()])
"""Entries, the group of each entry, and the beginnings and ends of groups."""


def of_groups(function: Callable[[Tensor], Tensor], empty: float = 0.0) -> Tensor:
    """Return torch's result of each group in float64, and `empty` for empty groups."""
    each = [torch.tensor(group, dtype=torch.float64) for group in GROUPS]
    return torch.stack([function(one) if len(one) else torch.tensor(empty, dtype=torch.float64) for one in each])


def of_entries(function: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([function(torch.tensor(group, dtype=torch.float64)) for group in GROUPS if group])


def without_nan(extreme: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the extreme as torch_scatter computes it: it ignores NaN, and is 0 without numbers."""
    return lambda group: extreme(group[~group.isnan()]) if not group.isnan().all() else group.new_zeros(())


def deviation(group: Tensor) -> Tensor:
    return group.std() if len(group) > 1 else group.sum() * 0


def pooled(pool: Callable[[Tensor, Tensor, int], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: pool(x.unsqueeze(1), INDEX, NUMBER).squeeze(1)


def scattered(name: str) -> Callable[[Tensor], Tensor]:
    return lambda x: ops.scatter(x.unsqueeze(1), INDEX, 0, dim_size=NUMBER, reduce=name).squeeze(1)


REDUCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "sum": (scattered("sum"), of_groups(torch.sum)),
    "mean": (scattered("mean"), of_groups(torch.mean)),
    "mul": (scattered("mul"), of_groups(torch.prod, 1.0)),
    "max": (scattered("max"), of_groups(without_nan(torch.amax))),
    "min": (scattered("min"), of_groups(without_nan(torch.amin))),
    "scatter_std": (lambda x: ops.scatter_std(x, INDEX, dim_size=NUMBER), of_groups(deviation)),
    "scatter_logsumexp": (
        lambda x: ops.scatter_logsumexp(x, INDEX, dim_size=NUMBER), of_groups(lambda group: group.logsumexp(0)),
    ),
    "scatter_softmax": (
        lambda x: ops.scatter_softmax(x, INDEX, dim_size=NUMBER), of_entries(lambda group: group.softmax(0)),
    ),
    "scatter_log_softmax": (
        lambda x: ops.scatter_log_softmax(x, INDEX, dim_size=NUMBER), of_entries(lambda group: group.log_softmax(0)),
    ),
    "segment_csr": (lambda x: ops.segment_csr(x, POINTERS), of_groups(torch.sum)),
    "segment_csr of means": (lambda x: ops.segment_csr(x, POINTERS, reduce="mean"), of_groups(torch.mean)),
    "segment_csr of maxima": (
        lambda x: ops.segment_csr(x, POINTERS, reduce="max"), of_groups(without_nan(torch.amax)),
    ),
    "segment_csr of minima": (
        lambda x: ops.segment_csr(x, POINTERS, reduce="min"), of_groups(without_nan(torch.amin)),
    ),
    "global_add_pool": (pooled(ops.global_add_pool), of_groups(torch.sum)),
    "global_mean_pool": (pooled(ops.global_mean_pool), of_groups(torch.mean)),
    "global_max_pool": (pooled(ops.global_max_pool), of_groups(torch.amax)),
    "global_softmax": (pooled(ops.global_softmax), of_entries(lambda group: group.softmax(0))),
}  # fmt: skip


def assert_like(found: Tensor, expected: Tensor, name: str) -> None:
    expected = expected.to(found.dtype)
    torch.testing.assert_close(
        found, expected, rtol=1e-4, atol=1e-4, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_reductions_of_groups_are_torchs(native, dtype):
    for name, (function, expected) in REDUCTIONS.items():
        assert_like(function(VALUES.to(dtype)).float(), expected.to(dtype).float(), name)


def test_captured_reductions_are_torchs():
    run = compile_forward(Function(lambda x: torch.cat([function(x) for function, _ in REDUCTIONS.values()])))
    parts = run(VALUES).split([len(expected) for _, expected in REDUCTIONS.values()])
    for (name, (_, expected)), found in zip(REDUCTIONS.items(), parts, strict=True):
        assert_like(found.detach(), expected, name)


def test_a_logarithm_of_sums_goes_on_from_what_is_there(native):
    out = torch.linspace(-1, 1, NUMBER)
    out[:4] = torch.tensor([-INF, INF, NAN, 2.0])
    made = ops.scatter_logsumexp(VALUES, INDEX, out=out.clone())
    expected = of_groups(lambda group: group.logsumexp(0), -INF)
    assert_like(made, torch.logaddexp(expected, out.double()), "scatter_logsumexp")
    x = torch.tensor([1.0, 2.0, -INF, 0.5], requires_grad=True)
    ops.scatter_logsumexp(x, torch.tensor([0, 0, 1, 3]), dim_size=5)[[0, 3]].sum().backward()
    assert_like(x.grad, torch.tensor([0.2689, 0.7311, 0, 1]), "gradient")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_maximum_over_neighbors_shows_a_neighbor_of_nan(native, compiled):
    torch.manual_seed(0)
    model = GraphSAGE(1, 2, 1, out_channels=2, aggr="max")
    x, edges = torch.tensor([[NAN], [1.0], [5.0], [2.0]]), torch.tensor([[0, 1, 2], [3, 3, 1]])
    found = (compile_forward(model) if compiled else model)(x, edges)
    assert found.isnan().all(1).tolist() == [True, False, False, True]


SCORES = [[1.0, 2, -3], [NAN, 2, 3], [INF, 2, 3], [-INF, 2, 3], [INF, -INF, 1], [INF, INF, 0], [2.0, 2, 2]]
MASKS = [[True, True, True], [False, True, True], [True, False, False], [False, False, False]]
TARGET, LABEL, KIND = torch.tensor([1.0, 0, 3]), torch.tensor([1.0, 0, 1]), torch.tensor([0, 1, 2])
FACTORS = torch.tensor([0.5, 0.25, 2.0])


def logits(scores: Tensor) -> Tensor:
    return torch.stack([scores, torch.zeros_like(scores), -scores], 1)


def area(scores: Tensor, label: Tensor) -> Tensor:
    above = scores[label == 1].unsqueeze(1) - scores[label == 0]
    ties = scores[label == 1].unsqueeze(1) == scores[label == 0]
    return torch.where(ties, 0.5, (above > 0).double()).mean()


def mean_precision(scores: Tensor, label: Tensor) -> Tensor:
    return torch.stack([label[scores >= one].mean() for one in scores[label == 1]]).mean()


def f1(scores: Tensor, label: Tensor) -> Tensor:
    hits, chosen = ((scores > 0) & (label == 1)).sum(), (scores > 0).sum() + (label == 1).sum()
    return 2 * hits / chosen if chosen else hits.double()


def good(metric: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the metric, but NaN if a score is NaN."""
    return lambda scores, target: (
        metric(scores, target).double() if not scores.isnan().any() else scores.new_full((), NAN)
    )


# Our function with a mask; the reference for the real rows in float64; the target; the value without rows.
LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], Tensor, float]] = {
    "mse_loss": (losses.mse_loss, F.mse_loss, TARGET, 0),
    "l1_loss": (losses.l1_loss, F.l1_loss, TARGET, 0),
    "huber_loss": (losses.huber_loss, F.huber_loss, TARGET, 0),
    "masked_mean": (lambda x, _, mask: losses.masked_mean(x, mask), lambda x, _: x.mean(), TARGET, 0),
    "binary_cross_entropy": (losses.binary_cross_entropy, F.binary_cross_entropy_with_logits, LABEL, 0),
    "cross_entropy": (
        lambda x, y, mask: losses.cross_entropy(logits(x), y, mask),
        lambda x, y: F.cross_entropy(logits(x), y), KIND, 0,
    ),
    "cross_entropy with weights": (
        lambda x, y, mask: losses.cross_entropy(logits(x), y, mask, FACTORS),
        lambda x, y: F.cross_entropy(logits(x), y, FACTORS.double()), KIND, 0,
    ),
    "mean_absolute_error": (metrics.mean_absolute_error, F.l1_loss, TARGET, NAN),
    "root_mean_squared_error": (
        metrics.root_mean_squared_error, lambda x, y: F.mse_loss(x, y).sqrt(), TARGET, NAN,
    ),
    "accuracy": (
        lambda x, y, mask: metrics.accuracy(logits(x), y, mask),
        good(lambda x, y: (logits(x).argmax(1) == y).double().mean()), KIND, 0,
    ),
    "roc_auc": (metrics.roc_auc, good(area), LABEL, NAN),
    "average_precision": (
        metrics.average_precision,
        good(lambda x, y: mean_precision(x, y) if y.any() else x.new_full((), NAN)), LABEL, NAN,
    ),
    "f1_score": (f1_score, good(f1), LABEL, 0),
}  # fmt: skip


def test_losses_and_metrics_are_those_of_the_real_rows():
    def everything(scores: Tensor, mask: Tensor) -> Tensor:
        return torch.stack([ours(scores, target, mask) for ours, _, target, _ in LOSSES.values()])

    compiled = compile_forward(Function(everything))
    for scores, mask in itertools.product(map(torch.tensor, SCORES), map(torch.tensor, MASKS)):
        for results in (everything(scores, mask), compiled(scores, mask)):
            for (name, (_, plain, target, none)), found in zip(LOSSES.items(), results.detach(), strict=True):
                real = target[mask].double() if target.is_floating_point() else target[mask]
                expected = plain(scores[mask].double(), real) if mask.any() else torch.tensor(none)
                assert_like(found, expected, f"{name} of {scores.tolist()} where {mask.tolist()}")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_metrics_of_small_whole_numbers_do_not_wrap(dtype):
    target, scores = torch.tensor([1, 100, 3, 90]).to(dtype), torch.tensor([120, -100, 3, 1]).to(dtype)
    for name in ("r2_score", "pearson_r", "mean_absolute_error", "root_mean_squared_error"):
        metric = getattr(metrics, name)
        assert_like(metric(scores, target), metric(scores.double(), target.double()), name)


@pytest.mark.parametrize("values", [[1, 2, 3, 4], [NAN, 2, 3, 4], [INF, 2, 3, 4], [-INF, INF, 3, 4], [5, 5, 5, 5]])
def test_norms_are_torchs_on_each_graph(native, values):
    x = torch.tensor(values, dtype=torch.float32).unsqueeze(1) * torch.tensor([1.0, -2.0])
    batch = torch.tensor([0, 0, 1, 1])
    whole = torch.nn.BatchNorm1d(2).double()(x.double()).detach()
    each = torch.cat([torch.nn.BatchNorm1d(2).double()(rows).detach() for rows in x.double().split(2)])
    norms = {BatchNorm(2): whole, GraphNorm(2): each, InstanceNorm(2): each}
    norms[LayerNorm(2)] = torch.nn.LayerNorm(2).double()(x.double()).detach()
    for norm, expected in norms.items():
        for run in (norm, compile_forward(norm)) if native == "compiled" else (norm,):
            norm.load_state_dict(type(norm)(2).state_dict())
            assert_like(run(x, batch, 2).detach(), expected, repr(norm))
