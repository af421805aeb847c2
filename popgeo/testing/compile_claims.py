"""Claims about compilers, and the check that a model can be compiled: no shape or operation depends on data."""

import copy
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from popgeo import ipu
from popgeo.capture.pytree import flatten, unflatten
from popgeo.testing.claims import BrokenError, Case, NotTriedError, SubjectKind, claim
from popgeo.testing.compare_runs import ModelRun
from popgeo.testing.differences import loss_of, noise_of, require_alike, returned_tensors
from popgeo.testing.model_subject import MORE, ModelSubject

_OPTIONS = ipu.Options(strict=False, show_progress=False, random_seed=0)
_DIFFERS = (
    "differs between the compiled step and eager PyTorch: {found:.6g} compiled, {expected:.6g} eager, at row {row}; "
    "{allowed:.1e} is allowed. The usual cause: state that is not a buffer (call register_buffer), or random numbers "
    "that are not torch's."
)


def check_static_capture(
    model: nn.Module | Callable[..., Any],
    *inputs: Any,
    other_inputs: Sequence[Any] | None = None,
    tolerance: float | None = None,
    **named_inputs: Any,
) -> None:
    """Check that a model can be compiled once for these inputs and then equals eager PyTorch.

    No shape and no decision may depend on data, and a capture with other data of the same shapes must give the same
    program. One compiled call must give the results, gradients and buffers of an eager call, in the mode of the model.
    The loss is the sum of the scalar results, or without scalars the mean square of each. A model without trained
    parameters is compiled for inference.

    The check works on copies: the model, its buffers, the inputs and torch's random numbers stay unchanged.

    Args:
        model: Module or function, called as `model(*inputs, **named_inputs)`.
        inputs: Tensors, or nests of tensors, graphs and plain values. Padding may contain any finite number.
        other_inputs: Positional inputs of the same shapes for the second capture. Default: random numbers of the same
            types.
        tolerance: Largest difference relative to the largest entry of the same tensor. Default: 1e-4, or 1e-8 in
            float64.
        named_inputs: Inputs by name.

    Raises:
        AssertionError: the check fails. The message lists the lines that depend on data, each with a remedy, or the
            operations that differ, or the result, gradient or buffer with both values.
        ValueError: the model returns no tensor.

    Example:
        >>> check_static_capture(torch.relu, torch.randn(4))
        >>> check_static_capture(lambda x: x[x > 0], torch.randn(4))
        Traceback (most recent call last):
            ...
        AssertionError: The model depends on data in 1 place, but an IPU needs a fixed program:
        - ...: index. Remedy: choose with torch.where(mask, x, other)...
    """
    args, kwargs = _cloned((inputs, named_inputs))
    if problems := ipu.check_static(model, *args, **kwargs):
        places = "\n".join(f"- {p.source}: {p.operation}. Remedy: {p.remedy}." for p in problems)
        number = f"{len(problems)} place{'s' * (len(problems) > 1)}"
        raise AssertionError(f"The model depends on data in {number}, but an IPU needs a fixed program:\n{places}")
    with torch.random.fork_rng():
        _check_capture(_Step(model), (inputs, named_inputs), other_inputs, tolerance)


class _Step(nn.Module):
    """A model with one loss for any result."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, args: Any, kwargs: Any) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return the results by name, and their loss; None if none needs a gradient."""
        tensors = returned_tensors(self.model(*args, **kwargs))
        trained = [tensor for tensor in tensors.values() if tensor.requires_grad]
        results = {name: tensor.detach() for name, tensor in tensors.items()}
        return results, loss_of(trained) if trained else None


def _check_capture(step: _Step, given: Any, other_inputs: Sequence[Any] | None, tolerance: float | None) -> None:
    """Compare compiled steps; `given` is a pair of positional inputs and inputs by name."""
    eager = copy.deepcopy(step)
    torch.manual_seed(0)
    with torch.enable_grad():
        results, loss = eager(*_cloned(given))
    slopes = _gradients(eager, loss)
    rate = _rate(eager, slopes)

    def compiled(args: Any, kwargs: Any) -> ipu.CompiledStep:
        copied = copy.deepcopy(step)
        if not slopes:
            wrapped = ipu.inference_model(copied, _OPTIONS)
        else:
            trained = [parameter for name, parameter in copied.named_parameters() if name in slopes]
            wrapped = ipu.training_model(copied, _OPTIONS, torch.optim.SGD(trained, lr=rate))
        try:
            return wrapped.compile(args, kwargs)
        except ValueError as error:
            raise AssertionError(f"The model cannot be captured: {error}") from error

    first = compiled(*_cloned(given))
    others, named_others = _mapped(given, _other)
    _compare_programs(first, compiled(others if other_inputs is None else _cloned(other_inputs), named_others))

    torch.manual_seed(0)
    found = first(*_cloned(given))[0]
    for name, expected in results.items():
        require_alike(name, found[name], expected, tolerance, _DIFFERS)
    for name, expected in eager.named_buffers():
        buffer = first.model.get_buffer(name)
        require_alike(f"buffer {name.removeprefix('model.')}", buffer, expected, tolerance, _DIFFERS)
    scale = noise_of(slopes)
    before, after = dict(step.named_parameters()), dict(first.model.named_parameters())
    for name, expected in slopes.items():
        slope = (before[name].detach() - after[name].detach()) / rate
        require_alike(f"the gradient of {name.removeprefix('model.')}", slope, expected, tolerance, _DIFFERS, scale)


def _gradients(step: nn.Module, loss: Tensor | None) -> dict[str, Tensor]:
    """Return the gradient of the loss for each parameter that the loss depends on."""
    parameters = {name: parameter for name, parameter in step.named_parameters() if parameter.requires_grad}
    if loss is None or not parameters:
        return {}
    slopes = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return {name: slope for name, slope in zip(parameters, slopes, strict=True) if slope is not None}


def _rate(step: nn.Module, slopes: Mapping[str, Tensor]) -> float:
    """Return a learning rate so large that the update is the gradient, up to rounding."""
    steepest = max((float(slope.abs().max()) for slope in slopes.values()), default=0.0)
    largest = max((float(step.get_parameter(name).detach().abs().max()) for name in slopes), default=0.0)
    if steepest == 0 or not math.isfinite(steepest):
        return 1.0
    return 2.0 ** round(math.log2(1e3 * max(largest, 1e-3) / steepest))


def _compare_programs(first: ipu.CompiledStep, second: ipu.CompiledStep) -> None:
    one, other = (str(model.graph).splitlines() for model in (first, second))
    lines = difflib.unified_diff(one, other, lineterm="", n=0)
    if changed := [line for line in lines if line[:2] not in ("--", "++", "@@")]:
        raise AssertionError(
            "The captured program depends on the data: with other data of the same shapes it has other operations. The "
            "usual cause: a number that Python computed, such as a random number or a counter. The first of "
            f"{len(changed)} changed lines:\n" + "\n".join(changed[:6])
        )


def _cloned(nest: Any) -> Any:
    return _mapped(nest, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad))


def _other(tensor: Tensor) -> Tensor:
    """Return random numbers for a floating point tensor, and reversed rows for an integer tensor."""
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.randn_like(tensor)
    return tensor.flip(0) if tensor.dim() else tensor


def _mapped(nest: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the nest with `function` applied to each of its tensors."""
    tensors, structure = flatten(nest)
    return unflatten(structure, list(map(function, tensors)))


class _TensorFunction(nn.Module):
    """The model as a function of a batch's tensors, which compilers handle better than a batch."""

    def __init__(self, subject: ModelSubject, seen: ModelRun) -> None:
        super().__init__()
        held = seen.batch.batch
        self.run, self.model = lambda *given: subject.run(*given), subject.evaluated  # deepcopy shares functions
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
