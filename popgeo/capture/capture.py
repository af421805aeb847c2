"""Turns a model, or a function, into one graph of operations of fixed shape."""

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

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
    """One graph of what a function does with arguments like these; nothing is computed, and nothing of it changes.

    Args:
        function: A module, whose parameters and buffers become inputs of the graph, or any function of tensors.
        arguments: What it is called with; each tensor becomes an input, everything else a part of the graph.
        trained: Names of the parameters to differentiate the loss by; none captures the forward pass alone.
        loss_scaling: The backward pass starts from this gradient of the loss; None makes it an input of the graph,
            `state:loss_scale`, one float32.
        autocast: The type that the forward pass computes in if that is safe; None leaves torch's setting.
        on_operation: Called after each operation, to show how far it is.

    Raises:
        DynamicShapeError: a shape or a decision depends on the data; the message holds the model's line and a remedy.
        ValueError: no loss, several, or a change of what is neither argument nor state, such as the random seed.

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
    with fake_mode:
        placed: dict[Input, Tensor] = {one: fake_of(tensor, one.name in trained) for one, tensor in state.items()}
        scale = torch.empty(()) if loss_scaling is None and trained else None
        inputs = _stand_ins(arguments)
    recorder.page.add_inputs({**placed, **({} if scale is None else {LOSS_SCALE: scale}), **inputs})
    recorder.moved = _moved(inputs.values(), arguments.tensors)
    by_id = {id(tensor): placed[one] for one, tensor in state.items()}
    placed |= inputs
    casting = contextlib.nullcontext() if autocast is None else torch.autocast("cpu", dtype=autocast)

    def run() -> tuple[list[Tensor], Any]:
        """Writes the forward pass down: the tensors that it returns, and how they nest."""
        try:
            with static_forms() as slots, recorder.follow_modules(module), recorder, casting:
                results, result = flatten(arguments.pass_to(function, list(inputs.values())))
                return slots.handed_out(results), result
        except RuntimeError as error:
            if recorder.refusal is not None:  # TorchScript hands on neither the error nor its words
                raise recorder.refusal from error
            raise

    with (
        held_state.ONE_AT_A_TIME, drawn_numbers(function, arguments, recorder) as drawn, fake_mode,
        held_state.noted_reads() as reads, held_state.swapped(module, by_id) as held, torch.enable_grad(),
    ):  # fmt: skip
        before = held.attributes()
        results, result = run()
        weights = {name: placed[Input(Role.PARAMETER, name)] for name in trained}
        if any(weight.grad is not None for weight in weights.values()):
            raise ValueError(
                "The model calls backward() in forward, which adds to the gradients that it is trained by; a step "
                "would leave that out. Take derivatives by torch.autograd.grad."
            )
        loss, slopes = backward(results, weights, recorder, loss_scaling if scale is None else scale)
        written_first = recorder.page.changed(placed)
        made = _keep_buffers(held, [*results, *slopes.values()], recorder)
        drawn.go_on()
        if moved := held.carried(before, reads):
            _refuse_carried(held, moved, run, reads, written_first, placed, recorder)
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


def _stand_ins(arguments: Arguments) -> dict[Input, Tensor]:
    """A tensor in memory of its own for each tensor of a call.

    Raises:
        ValueError: one is a sparse or a quantized tensor.
    """
    given = [Input(Role.ARGUMENT, name) for name, _ in leaves(arguments.structure)]
    for one, tensor in zip(given, arguments.tensors, strict=True):
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise ValueError(
                f"`{one.name}` is a {tensor.layout} tensor of {tensor.dtype}, whose elements have no fixed places. "
                "Pass tensor.to_dense() or tensor.dequantize(), or a sparse matrix as its edge_index and values."
            )
    tensors = (torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in arguments.tensors)
    return dict(zip(given, tensors, strict=True))


def _moved(inputs: Iterable[Tensor], real: Iterable[Tensor]) -> set[int]:
    """The storages of stand-ins whose real tensors are views with an offset or with strides."""
    pairs = zip(inputs, real, strict=True)
    return {own.untyped_storage()._cdata for own, one in pairs if one.storage_offset() or not one.is_contiguous()}


def _refuse_constants_of_the_state(recorder: Recorder, state: Mapping[Input, Tensor]) -> None:
    own = {id(tensor): one.name for one, tensor in state.items()}
    aside = [own[id(tensor)] for tensor in recorder.page.constants.values() if id(tensor) in own]
    if aside:
        raise ValueError(
            f"The model, or a hook, reads {', '.join(aside)} out of a closure, a list or a partial, where the compiled "
            "step would neither see it change nor train it. Read it as an attribute of its module, such as self.weight."
        )


def bind(function: Callable[..., Any], *inputs: Any, **named_inputs: Any) -> Arguments:
    """The arguments of a call of a function, or of a module, by name."""
    return Arguments.of(signature_of(function), inputs, named_inputs)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the arguments of a function or of a module's forward pass; torch's own functions know places alone.

    Raises:
        ValueError: `torch.compile` has compiled the module or the function.
    """
    if "_orig_mod" in getattr(function, "_modules", {}) or hasattr(function, "_torchdynamo_orig_callable"):
        raise ValueError(
            "The model is compiled by torch.compile already, and a step compiles it by itself. Pass the model as "
            'it was before, and backend="inductor" if inductor is to write the kernels.'
        )
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except ValueError:
        return inspect.Signature([inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)])


def fake_of(tensor: Tensor, trained: bool) -> Tensor:
    """A stand-in in memory of its own, even where the tensor is a view of a larger one; hooks see its gradient too."""
    fake = marked(torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype), marks_of(tensor))
    fake = nn.Parameter(fake, requires_grad=trained) if isinstance(tensor, nn.Parameter) else fake
    for hook in (tensor._backward_hooks or {}).values() if trained else ():
        fake.register_hook(hook)
    return fake


def _refuse_carried(
    held: held_state.HeldState,
    moved: Sequence[str],
    run: Callable[[], Any],
    reads: dict[tuple[int, str], Any],
    written: Collection[Input],
    placed: Mapping[Input, Tensor],
    recorder: Recorder,
) -> None:
    """Tells by a second run what the attributes were that a first one had looked at and then changed.

    A cache, which stays from then on, is filled again in each call of a step, with the results that eager code has.

    Args:
        held: The module, as the first run left it.
        moved: Names of the attributes.
        run: Runs the function once more.
        reads: What the first run has looked at; what the second one does is added.
        written: The inputs that the first run has changed in place.
        placed: All inputs.
        recorder: Writes the second run down apart.

    Raises:
        ReplacedStateError: it changes them again, so that each call has something for the next one.
        ValueError: the first call changes inputs which later ones leave alone.
    """
    held.put_in()
    before, first_reads = held.attributes(), dict(reads)
    reads.clear()
    with recorder.apart():
        recorder.page.add_inputs(placed)
        run()
        later = recorder.page.changed(placed)
    again = held.carried(before, reads)
    reads.update(first_reads)
    if again:
        raise held_state.ReplacedStateError(
            f"The model reads {', '.join(again)} and changes that in each call, while a compiled step would continue "
            "with what it was at first. Make it a buffer that is changed in place, as register_buffer('n', "
            "torch.zeros(())) and self.n.add_(1), or pass it as an argument that is a tensor."
        )
    if first := [one.name for one in placed if one in set(written) - later]:
        raise ValueError(
            f"The first call of the model changes {', '.join(first)} and sets {', '.join(moved)}, later ones do not. "
            "Call the model once before it is compiled, so that the step is one of the later calls."
        )


def _keep_buffers(held: held_state.HeldState, made: Sequence[Tensor], recorder: Recorder) -> list[Tensor]:
    """Writes what the model put in the place of buffers into them, after all that reads the old values.

    Returns:
        The step's results, copied if they are the old value of a replaced buffer.
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
