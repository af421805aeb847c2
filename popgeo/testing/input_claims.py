"""Claims about inputs: any memory layout is accepted, and a call leaves nothing behind."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from popgeo.testing.claims import BrokenError, Case, NotTriedError, SubjectKind, claim
from popgeo.testing.differences import difference, loss_of, require_alike
from popgeo.testing.model_subject import ModelSubject

_FLOAT32 = 1e-3  # largest difference between float32 and float64, relative to the largest entry


def _strided(tensor: Tensor) -> Tensor:
    """Return the same numbers with gaps between them in memory."""
    return torch.stack([tensor, torch.zeros_like(tensor)], -1)[..., 0]


def _shifted(tensor: Tensor) -> Tensor:
    """Return the same numbers with an offset in a larger block of memory."""
    return torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape) if tensor.numel() else tensor


_LAYOUTS = {
    "strided": _strided,
    "transposed": lambda tensor: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor,
    "shifted": _shifted,
}


@claim("layout of inputs", SubjectKind.MODEL, settings=[{"layout": name} for name in _LAYOUTS])
def layout(subject: ModelSubject, case: Case) -> None:
    """Check that the memory layout of an input changes no result.

    Tried: inputs that are not contiguous, transposed in memory, or begin inside of a larger block.

    Cause: a kernel assumes contiguous memory, or the model calls .view. Call .contiguous() first, or .reshape, which
    accepts any layout.
    """
    name = case.settings["layout"]

    def check(model: Any, wide: bool) -> None:
        see = partial(subject.see, case.graphs, model=model, wide=wide)
        subject.compare(see(change=lambda batch: batch.apply(_LAYOUTS[name])), see(), f"{name} inputs", model)

    for model in subject.modes:
        subject.unless_rounded(partial(check, model))


@claim("inputs stay", SubjectKind.MODEL)
def inputs_stay(subject: ModelSubject, case: Case) -> None:
    """Check that a call changes nothing in its batch.

    Tried: the batch before and after a call is compared, attribute by attribute.

    Cause: an operation in place, or a new attribute of the batch. Work on a copy, or on copy.copy(batch).
    """
    before: dict[str, Any] = {}

    def remember(batch: Batch) -> Batch:
        before.update(batch.clone().to_dict())
        return batch

    for model in subject.modes:
        after = subject.see(case.graphs, model=model, change=remember).batch.batch.to_dict()
        for name in before.keys() | after.keys():
            if not _same(before.get(name), after.get(name)):
                raise BrokenError(f"the call modified batch.{name}")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        is_like = one.shape == other.shape and one.dtype == other.dtype
        return is_like and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    return type(one) is type(other)


@claim("no memory", SubjectKind.MODEL)
def no_memory(subject: ModelSubject, case: Case) -> None:
    """Check that results in evaluation do not depend on earlier batches.

    Tried: a batch after another batch of the same model is compared to the batch alone, in evaluation.

    Cause: the model keeps values of the first batch, such as normalized weights (cached=True), sizes or a mask. Keep
    nothing that depends on data.
    """
    alone, after = subject.see(case.graphs), subject.see(case.graphs, before=subject.graphs[::-1])
    subject.compare(after, alone, "the batch before", rows_only=True)


@claim("evaluation", SubjectKind.MODEL)
def evaluation(subject: ModelSubject, case: Case) -> None:
    """Check that a model in evaluation drops nothing and keeps its buffers.

    Tried: two calls in evaluation with different seeds and active dropout are compared; so are buffers before and
    after.

    Cause: F.dropout without training=self.training, or running statistics that ignore self.training.
    """
    if subject.is_random:
        raise NotTriedError("the model is random in evaluation, even without dropout")
    one, other = (subject.see(case.graphs, seed=seed, dropout=True) for seed in (0, 1))
    subject.compare(other, one, "the seed of dropout", rows_only=True)
    buffers = dict(subject.evaluated.named_buffers()) if isinstance(subject.evaluated, torch.nn.Module) else {}
    for name, buffer in buffers.items():
        if difference(one.run.buffers[name], buffer.to(one.run.buffers[name].dtype)) is not None:
            raise BrokenError(f"a call in evaluation modified the buffer {name}")


@claim("float32", SubjectKind.MODEL)
def float32(subject: ModelSubject, case: Case) -> dict[str, float]:
    """Check that results in float32 equal the results in float64 except for rounding.

    Tried: the model and the graphs in float64 are compared to float32, in evaluation.

    Cause: numbers that cancel: a variance as mean of squares minus square of mean, a distance from squares of lengths,
    differences of running sums, or large integers in float32.
    """
    single, double = subject.see(case.graphs), subject.see(case.graphs, wide=True)
    worst = 0.0
    for name, kind in subject.kinds().items():
        found, expected = (seen.rows(kind, seen.run.tensors[name]) for seen in (single, double))
        if not found.is_floating_point():
            continue
        if found.dtype != torch.float32:
            raise NotTriedError(f"{name} is {found.dtype}".replace("torch.", ""))
        words = "is {found:.6g} in float32, but {expected:.6g} in float64; {allowed:.1e} is allowed"
        require_alike(name, found.double(), expected.double(), _FLOAT32, words)
        gap = (found.double() - expected).detach().abs().amax() if found.numel() else torch.zeros(())
        worst = max(worst, float(gap))
    return {"largest difference": worst}


@claim("lone nodes", SubjectKind.MODEL)
def lone_nodes(subject: ModelSubject, case: Case) -> None:
    """Check that a graph of a single node without neighbors has finite results and gradients.

    Tried: a graph of one node without edges is added to the others; results and gradients must be finite.

    Cause: a division by zero neighbors or by a zero variance, or the logarithm or maximum of nothing. Clamp the
    divisor.
    """
    few = case.graphs[: max(subject.num_graphs - 2, 1)] if subject.num_graphs else case.graphs
    lone = first_nodes(few[0], 1)
    for model in subject.modes:
        run = subject.see([*few, lone], model=model).run
        trained = [tensor for tensor in run.tensors.values() if tensor.requires_grad]
        slopes = run.gradients(loss_of(trained)) if trained else {}
        for name, tensor in {**run.tensors, **{f"the gradient of {name}": x for name, x in slopes.items()}}.items():
            if not tensor.isfinite().all():
                worst = next(x for x in tensor.flatten().tolist() if not math.isfinite(x))
                raise BrokenError(f"{name} is {worst} for a graph of one node without edges")


def first_nodes(graph: Any, number: int) -> Any:
    """Return the graph of the first nodes, without edges.

    Raises:
        NotTriedError: the graph has several types, or too few nodes.
    """
    if not hasattr(graph, "subgraph") or hasattr(graph, "node_types") or graph.num_nodes < number:
        raise NotTriedError(f"it needs a graph of one type with {number} nodes")
    kept = graph.subgraph(torch.arange(graph.num_nodes) < number)
    return kept.edge_subgraph(torch.zeros(kept.num_edges, dtype=torch.bool)) if "edge_index" in graph else kept
