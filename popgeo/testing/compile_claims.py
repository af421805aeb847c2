"""Claims about compilers: a compiled model returns equal results and is compiled once."""

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from popgeo.testing.claims import BrokenError, Case, NotTriedError, SubjectKind, claim
from popgeo.testing.compare_runs import ModelRun
from popgeo.testing.differences import require_alike, returned_tensors
from popgeo.testing.model_subject import MORE, ModelSubject
from popgeo.testing.static_capture import check_static_capture


class _TensorFunction(nn.Module):
    """The model as a function of a batch's tensors, which compilers handle better than a batch."""

    def __init__(self, subject: ModelSubject, seen: ModelRun) -> None:
        super().__init__()
        held = seen.batch.batch
        self.run, self.model = lambda *given: subject.run(*given), subject.evaluated  # copies do not copy the subject
        self.plain = {"num_graphs": held.num_graphs, "num_nodes": held.num_nodes}

    def forward(self, tensors: dict[str, Tensor]) -> Any:
        return self.run(self.model, Data(**tensors, **self.plain))


def _epoch(subject: ModelSubject, case: Case) -> tuple[_TensorFunction, list[dict[str, Tensor]]]:
    """Return the model, and three batches of one shape with different graphs."""
    few = list(case.graphs)
    orders = [few, few[::-1], [few[0]] * len(few) if len({str(graph) for graph in few}) == 1 else few[1:] + few[:1]]
    seen = [subject.see(graphs, padding=MORE) for graphs in orders]
    if getattr(seen[0].batch.batch, "node_types", None):
        raise NotTriedError("it needs graphs of one type")
    batches = [{k: v for k, v in s.batch.batch.to_dict().items() if isinstance(v, Tensor)} for s in seen]
    return _TensorFunction(subject, seen[0]), batches


def _require_same(found: Any, expected: Any, how: str, tolerance: float | None) -> None:
    new = returned_tensors(found)
    words = "is {found:.6g}, but {expected:.6g} in eager PyTorch, at row {row}; {allowed:.1e} is allowed"
    for name, tensor in returned_tensors(expected).items():
        require_alike(f"{name} {how}", new[name], tensor, tolerance, words)


@claim("torch.compile", SubjectKind.MODEL, settings=[{"backend": "aot_eager"}], slow=True)
def torch_compile(subject: ModelSubject, case: Case) -> dict[str, float]:
    """Check that torch.compile changes no result, and that one trace is enough for an epoch.

    Tried: three batches of one shape with different graphs run through torch.compile, in evaluation; the graphs traced
    after the first batch are counted.

    Cause: the program contains a number that Python computed from the first batch, by .item(), len, int(batch.max()) or
    a counter. Keep such numbers in tensors, or pass them as fixed sizes.
    """
    from torch._dynamo.testing import CompileCounterWithBackend  # slow to import

    model, batches = _epoch(subject, case)
    counter = CompileCounterWithBackend(case.settings["backend"])
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=counter, dynamic=False)
    counts = []
    for batch in batches:
        _require_same(compiled(batch), model(batch), "compiled", subject.tolerance)
        counts.append(int(counter.frame_count))
    if counts[-1] > counts[0]:
        raise BrokenError(f"batches of one shape were traced again: {counts} traced graphs after the three batches")
    return {"graphs": counts[0]}


@claim("export", SubjectKind.MODEL, slow=True)
def export(subject: ModelSubject, case: Case) -> None:
    """Check that torch.export changes no result, also for other batches of the same shape.

    Tried: torch.export of one batch, run on two other batches of its shape, in evaluation.

    Cause: the program contains a number that Python computed from the first batch, by .item(), len, int(batch.max()) or
    a counter. Keep such numbers in tensors, or pass them as fixed sizes.
    """
    model, batches = _epoch(subject, case)
    program = torch.export.export(model, (batches[0],), strict=False).module()
    for batch in batches:
        _require_same(program(batch), model(batch), "exported", subject.tolerance)


@claim("compiled step", SubjectKind.MODEL, slow=True)
def compiled_step(subject: ModelSubject, case: Case) -> None:
    """Check that no shape or decision depends on data, and that a compiled training step equals eager PyTorch's.

    Tried: a training step of popgeo, captured twice with different data of the same shapes and run once, is compared to
    eager PyTorch.

    Cause: a shape or a decision depends on data, or state is not a buffer; the message names the line.
    """
    model, batches = _epoch(subject, case)
    model.model = subject.modes[0]
    try:
        check_static_capture(model, batches[0], other_inputs=(batches[1],), tolerance=subject.tolerance)
    except AssertionError as error:
        raise BrokenError(str(error)) from None
