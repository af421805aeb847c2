"""The capture of a model, or of a function, as one graph of operations of fixed shape."""

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from popgeo.capture import held_state
from popgeo.capture.arguments import Arguments
from popgeo.capture.backward import backward
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.drawn_numbers import drawn_numbers
from popgeo.capture.interrupts import held_interrupts
from popgeo.capture.marks import marked, marks_of
from popgeo.capture.op_graph import LOSS_SCALE, Input, Role
from popgeo.capture.pytree import flatten
from popgeo.capture.recorder import Recorder
from popgeo.capture.static_forms import static_forms
from popgeo.capture.structures import leaves
from popgeo.plain_surroundings import plain_surroundings

_PROCESSOR = torch.device("cpu")


@held_interrupts()
@plain_surroundings()
def capture(
    function: Callable[..., Any],
    arguments: Arguments,
    *,
    trained: Sequence[str] = (),
    loss_scaling: float | None = 1.0,
    autocast: torch.dtype | None = None,
    on_operation: Callable[[], object] = lambda: None,
) -> CapturedStep:
    """Return the graph of a function's operations on arguments of these shapes, without computing or changing anything.

    Args:
        function: Module, whose parameters and buffers become inputs of the graph, or function of tensors.
        arguments: Arguments of the call. Each tensor becomes an input, everything else a constant of the graph.
        trained: Names of the parameters to differentiate the loss by. Default: none, for the forward pass alone.
        loss_scaling: Gradient of the loss from which the backward pass starts; None makes it an input of the graph,
            `state:loss_scale`, one float32. Default: 1.
        autocast: Type in which the forward pass computes where that is safe; None keeps torch's setting.
        on_operation: Called after each operation, to show progress.

    Raises:
        DynamicShapeError: a shape or a decision depends on the data; the message has the model's line and a remedy.
        ValueError: there is no loss, there are several, or the function changes a tensor that is neither argument nor
            state.

    Example:
        >>> def scale(x, factor):
        ...     return x * factor
        >>> print(capture(scale, bind(scale, torch.ones(3), factor=2)).graph)
        %1 float32[3] = aten.mul.Tensor(%0, 2)
    """
    module = function if isinstance(function, nn.Module) else nn.Module()
    state = held_state.module_state(module)
    recorder = Recorder(inspect.unwrap(capture).__code__)
    recorder.on_operation = on_operation
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake_mode.cache_enabled = False  # the recorder knows layouts itself
    placed: dict[Input, Tensor] = {one: fake_of(fake_mode, own, one.name in trained) for one, own in state.items()}
    scale = fake_of(fake_mode, torch.empty(()), False) if loss_scaling is None and trained else None
    inputs = stand_ins(fake_mode, arguments)
    recorder.page.add_inputs({**placed, **({} if scale is None else {LOSS_SCALE: scale}), **inputs})
    recorder.view_storages = _storages_of_views(inputs.values(), arguments.tensors)
    by_id = {id(tensor): placed[one] for one, tensor in state.items()}
    placed |= inputs
    casting = contextlib.nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast)

    def run() -> tuple[list[Tensor], Any]:
        """Record the forward pass; return its tensors and their nesting."""
        try:
            with static_forms(recorder.slots), recorder.follow_modules(module), recorder, casting:
                results, result = flatten(arguments.pass_to(function, list(inputs.values())))
                return recorder.slots.check_results(results), result
        except RuntimeError as error:
            if recorder.refusal is not None:  # TorchScript loses the error and its message
                raise recorder.refusal from error
            if "not require grad" in str(error):
                _refuse_derivatives(placed, {**state, **dict(zip(inputs, arguments.tensors, strict=True))}, error)
            raise

    with (
        held_state.ONE_AT_A_TIME, drawn_numbers(function, arguments, recorder) as drawn, fake_mode,
        held_state.noted_reads(module) as reads, held_state.swapped(module, by_id) as held, torch.enable_grad(),
    ):  # fmt: skip
        before = held.attributes()
        results, result = run()
        weights = {name: placed[Input(Role.PARAMETER, name)] for name in trained}
        if any(weight.grad is not None for weight in weights.values()):
            raise ValueError(
                "The model calls backward() in forward, which adds to the gradients of its parameters; a compiled step "
                "would leave that out. Take derivatives by torch.autograd.grad."
            )
        loss, slopes = backward(results, weights, recorder, loss_scaling if scale is None else scale)
        written_first = recorder.page.changed(placed)
        made = _keep_buffers(held, [*results, *slopes.values()], recorder)
        drawn.record_state()
        if changed_names := held.changed_reads(before, reads):
            _refuse_changed_reads(held, changed_names, run, reads, written_first, placed, recorder)
    _refuse_constants_of_the_state(recorder, state)
    changed = recorder.page.changed(placed)
    written = tuple(one for one in inputs if one in changed)
    paths = {id(one): path for path, one in module.named_modules()}
    graph = recorder.page.graph([*made[: len(results)], *(inputs[one] for one in written), *made[len(results) :]])
    return CapturedStep(
        graph=graph,
        result=result,
        written=written,
        trained=tuple(slopes),
        captured_ops=len(graph.ops),
        files=frozenset(recorder.files),
        loss=next((i for i, tensor in enumerate(results) if tensor is loss), None),
        reads=frozenset((paths[one], name) for one, name in reads if one in paths),
    )


def stand_ins(mode: FakeTensorMode, arguments: Arguments) -> dict[Input, Tensor]:
    """Return an empty tensor in new memory for each tensor of a call, with its dimensions in the same order in memory.

    Views, random numbers and changes in place of what a model makes of a transposed tensor depend on that order.

    Raises:
        ValueError: a tensor is sparse or quantized.
    """
    given = [Input(Role.ARGUMENT, name) for name, _ in leaves(arguments.structure)]
    for one, tensor in zip(given, arguments.tensors, strict=True):
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise ValueError(
                f"`{one.name}` is a {tensor.layout} tensor of {tensor.dtype}, whose elements have no fixed places. "
                "Pass tensor.to_dense() or tensor.dequantize(), or a sparse matrix as its edge_index and values."
            )
    memory = (
        torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") if tensor.is_contiguous()
        else torch.empty_like(tensor.detach(), device="meta") for tensor in arguments.tensors
    )  # fmt: skip
    return dict(zip(given, (FakeTensor(mode, one, _PROCESSOR) for one in memory), strict=True))


def _storages_of_views(inputs: Iterable[Tensor], real: Iterable[Tensor]) -> set[int]:
    """Return the storages of inputs if the real tensor has an offset or other strides."""
    return {
        own.untyped_storage()._cdata
        for own, one in zip(inputs, real, strict=True)
        if one.storage_offset() or not (one.is_contiguous() or one.stride() == own.stride())
    }


def _refuse_derivatives(placed: Mapping[Input, Tensor], given: Mapping[Input, Tensor], error: Exception) -> None:
    """Explain a failed derivative by inputs that require a gradient in eager mode alone, if there are any."""
    lost = [one.name for one, tensor in given.items() if tensor.requires_grad and not placed[one].requires_grad]
    if lost:
        names = ", ".join(lost if len(lost) < 5 else [*lost[:4], "..."])
        raise ValueError(
            "The model takes a derivative by a tensor that requires no gradient in a compiled step. Of all inputs, "
            f"only trained weights require one, unlike {names}. Differentiate by a tensor that forward makes and then "
            "uses, such as x = x.detach().requires_grad_()."
        ) from error


def _refuse_constants_of_the_state(recorder: Recorder, state: Mapping[Input, Tensor]) -> None:
    own = {id(tensor): one.name for one, tensor in state.items()}
    if aside := [own[id(tensor)] for tensor in recorder.page.constants.values() if id(tensor) in own]:
        raise ValueError(
            f"The model, or a hook, reads {', '.join(aside)} from a closure, a list or a partial, where a step would "
            "neither see it change nor train it. Read it as an attribute of its module, such as self.weight."
        )


def bind(function: Callable[..., Any], *inputs: Any, **named_inputs: Any) -> Arguments:
    """Return the arguments of a call of a function, or of a module, by name."""
    return Arguments.of(signature_of(function), inputs, named_inputs)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function or of a module's forward pass.

    Some functions of torch have no signature; they take arguments by position.

    Raises:
        ValueError: `torch.compile` has compiled the module or the function.
    """
    if "_orig_mod" in getattr(function, "_modules", {}) or hasattr(function, "_torchdynamo_orig_callable"):
        raise ValueError(
            "The model is compiled by torch.compile already, and a step compiles the model itself. Pass the original "
            'model, and backend="inductor" if inductor is to write the kernels.'
        )
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except ValueError:
        return inspect.Signature([inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)])


def fake_of(mode: FakeTensorMode, tensor: Tensor, trained: bool) -> Tensor:
    """Return a stand-in for a tensor in new memory; the hooks of a trained tensor get its gradient, too."""
    memory = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    fake: Tensor = FakeTensor(mode, marked(memory, marks_of(tensor)), _PROCESSOR)
    if isinstance(tensor, nn.Parameter):
        fake.requires_grad_(trained)._is_param = True  # as torch marks parameters
    for hook in (tensor._backward_hooks or {}).values() if trained else ():
        fake.register_hook(hook)
    return fake


def _refuse_changed_reads(
    held: held_state.HeldState,
    names: Sequence[str],
    run: Callable[[], Any],
    reads: dict[tuple[int, str], Any],
    written: Collection[Input],
    placed: Mapping[Input, Tensor],
    recorder: Recorder,
) -> None:
    """Capture again, to distinguish a cache (filled by the first call) from an attribute that every call changes.

    A cache stays from the first call on. A compiled step fills it in each call, with the results of eager code.

    Args:
        held: State of the module after the first run.
        names: Names of the attributes that the first run has read and changed.
        run: Runs the function once more.
        reads: Attributes that the first run has read.
        written: Inputs that the first run has changed in place.
        placed: Stand-ins of all inputs.
        recorder: Recorder, which records the second run in a separate graph.

    Raises:
        ReplacedStateError: the second run changes the attributes again, so each call passes something to the next one.
        ValueError: the first call changes inputs that later calls do not change.
    """
    held.insert_stand_ins()
    before, first_reads = held.attributes(), dict(reads)
    reads.clear()
    with recorder.separate_graph():
        recorder.page.add_inputs(placed)
        run()
        later = recorder.page.changed(placed)
    again = held.changed_reads(before, reads)
    reads.update(first_reads)
    if again:
        raise held_state.ReplacedStateError(
            f"The model reads {', '.join(again)} and changes it in each call, while a compiled step would always "
            "use its first value. Make it a buffer that is changed in place, as register_buffer('n', "
            "torch.zeros(())) and self.n.add_(1), or pass it as an argument that is a tensor."
        )
    if first := [one.name for one in placed if one in set(written) - later]:
        raise ValueError(
            f"The first call of the model changes {', '.join(first)} and sets {', '.join(names)}; later calls do not. "
            "Call the model once before it is compiled, so that the step is one of the later calls."
        )


def _keep_buffers(held: held_state.HeldState, made: Sequence[Tensor], recorder: Recorder) -> list[Tensor]:
    """Record copies into buffers from the tensors that replaced them, after all operations that read the old values.

    Returns:
        The step's results. A result that is the old value of a replaced buffer is a copy.
    """
    replaced = held.replaced_buffers(recorder.page.is_constant)
    old = {buffer.untyped_storage()._cdata for buffer, _ in replaced}
    with recorder, torch.no_grad():
        results, new = (
            [tensor.clone() if tensor.untyped_storage()._cdata in old else tensor for tensor in tensors]
            for tensors in (made, [tensor for _, tensor in replaced])
        )
        for (buffer, _), tensor in zip(replaced, new, strict=True):
            buffer.copy_(tensor)
    return results
