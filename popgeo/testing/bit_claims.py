"""The claim that a compiled model gives each graph the same bits in every batch."""

from typing import Any

import torch
from torch import Tensor, nn

from popgeo.engine.compile_step import compile_step
from popgeo.engine.step_options import StepOptions
from popgeo.testing.claims import BrokenError, Case, NotTriedError, SubjectKind, claim
from popgeo.testing.differences import returned_tensors
from popgeo.testing.fixed_batches import FixedBatch, fixed_batch
from popgeo.testing.model_subject import MORE, ModelSubject


class _PartOfGraph(nn.Module):
    """A model with a loss of weighted rows, so that one graph alone can have a gradient."""

    def __init__(self, model: nn.Module, subject: ModelSubject, kinds: dict[str, str]) -> None:
        super().__init__()
        self.model, self._subject, self._kinds = model, subject, kinds

    def forward(self, batch: Any, weights: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and the results by name."""
        results = returned_tensors(self._subject.run(self.model, batch))
        loss = batch.graphs_mask.sum() * 0.0
        for name, kind in self._kinds.items():
            rows = results[name].flatten(1) if results[name].dim() > 1 else results[name].unsqueeze(1)
            if rows.is_floating_point():
                loss = loss + (rows.square() * weights[kind].to(rows.dtype).unsqueeze(1)).sum()
        return loss, {name: results[name].detach() for name in self._kinds}


@claim("identical bits", SubjectKind.MODEL, optional=True)
def identical_bits(subject: ModelSubject, case: Case) -> dict[str, float]:
    """Check that a compiled model gives each graph the same bits in every batch.

    Tried: a step compiled with `StepOptions(batch_invariant=True)` runs in evaluation on each graph alone, on all
    graphs, in reverse order and with more padding; the rows of each graph, and its part of each gradient, are compared
    bit by bit.

    Cause: a norm or mean over the batch, even if its effect is small; or an operation of torch whose rounding depends
    on the number of rows, or on the place of a row.
    """
    if not isinstance(subject.evaluated, nn.Module):
        raise NotTriedError("a function has no weights")
    model = subject.evaluated
    kinds = {name: kind for name, kind in subject.kinds(model).items() if kind is not None}
    if not kinds:
        raise NotTriedError("no result has a row per graph, node or edge")
    graphs = list(case.graphs)
    order = [*range(len(graphs))]
    known: dict[int, dict[str, Tensor]] = {}
    compared = 0
    for some, padding in (*(([i], 0) for i in order), (order, 0), (order[::-1], 0), (order, MORE)):
        made = fixed_batch([graphs[i] for i in some], padding=padding, garbage=0.0)
        step = _Step(model, subject, kinds, made)
        for place, i in enumerate(some):
            found = step.bits_of(place)
            for name, bits in known.setdefault(i, found).items():
                compared += 1
                if not torch.equal(bits, found[name]):
                    raise BrokenError(f"{name} of graph {i} has other bits in {made} than alone", graph=i)
    return {"compared tensors": float(compared)}


class _Step:
    """A compiled step on one batch, whose optimizer keeps each gradient and changes no weight."""

    def __init__(self, model: nn.Module, subject: ModelSubject, kinds: dict[str, str], made: FixedBatch) -> None:
        self._kinds, self._made = kinds, made
        self._module = _PartOfGraph(model, subject, kinds)
        self._optimizer = torch.optim.Adam(self._module.parameters(), lr=0.0, betas=(0.0, 0.0))
        options = StepOptions(batch_invariant=True, show_progress=False)
        self._step = compile_step(self._module, self._optimizer, options=options)

    def bits_of(self, place: int) -> dict[str, Tensor]:
        """Return the rows of the graph at a place of the batch, and its part of each gradient."""
        slots, counts = self._made.slots, self._made.counts
        ends = {kind: numbers.cumsum(0) for kind, numbers in counts.items()}
        rows = {kind: slice(int(ends[kind][place] - counts[kind][place]), int(ends[kind][place])) for kind in counts}
        weights = {kind: torch.zeros(slots[kind]) for kind in set(self._kinds.values())}
        for kind, weight in weights.items():
            weight[rows[kind]] = 1.0
        _, results = self._step(self._made.batch, weights)
        found = {name: results[name][rows[kind]].clone() for name, kind in self._kinds.items()}
        for name, parameter in self._module.named_parameters():
            if state := self._optimizer.state.get(parameter):
                found[f"the gradient of {name.removeprefix('model.')}"] = state["exp_avg"].clone()
        return found
