"""The memory of a step in eager torch, from shapes: the step runs on stand-ins, which are freed as tensors would be."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from popgeo.capture.arguments import Arguments
from popgeo.capture.capture import fake_of, stand_ins
from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.free_slots import FreeSlots
from popgeo.capture.held_state import ONE_AT_A_TIME, module_state, swapped
from popgeo.capture.pytree import flatten
from popgeo.capture.schemas import target
from popgeo.capture.static_forms import static_forms
from popgeo.engine.fuse.plan_interactions import eager_workspace
from popgeo.plain_surroundings import plain_surroundings


@dataclass(frozen=True)
class Peak:
    """The largest memory of the tensors that a block made, by the phase that made them.

    Attributes:
        nbytes: Bytes of all tensors together.
        by_phase: Bytes of the tensors of each phase at that moment.
        kept: Bytes at that moment of the tensors that the caller asked about.
    """

    nbytes: int
    by_phase: Mapping[str, int]
    kept: int


class Allocations(TorchDispatchMode):
    """A record of the memory that operations make and free while the block runs; stand-ins count as tensors.

    Attributes:
        phase: Phase of the operations that come next.
        differentiates: Whether autograd has run an operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase, self.differentiates = "forward", False
        self._changes: list[tuple[int, int]] = []  # number of a memory; its bytes, negative when it is freed
        self._phases: list[str] = []  # of each memory
        self._numbers = weakref.WeakKeyDictionary[Any, int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        self.differentiates |= torch._C._current_autograd_node() is not None
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                self._follow(tensor.untyped_storage())
        if nbytes := eager_workspace(target(func), args):
            self._changes += [(len(self._phases), nbytes), (len(self._phases), -nbytes)]
            self._phases.append("workspace")
        return result

    def _follow(self, memory: torch.UntypedStorage) -> None:
        if memory not in self._numbers:
            number = self._numbers[memory] = len(self._phases)
            self._phases.append(self.phase)
            self._changes.append((number, memory.nbytes()))
            weakref.finalize(memory, self._changes.append, (number, -memory.nbytes()))

    @property
    def held(self) -> int:
        """Bytes that are not freed yet."""
        return sum(nbytes for _, nbytes in self._changes)

    def peak(self, kept: Iterable[Tensor] = ()) -> Peak:
        """Return the largest memory so far.

        Args:
            kept: Tensors whose part of the peak is asked for. Default: none.
        """
        held = most = at = 0
        for place, (_, nbytes) in enumerate(self._changes, 1):
            held += nbytes
            if held > most:
                most, at = held, place
        numbers = {self._numbers.get(tensor.untyped_storage()) for tensor in kept}
        by_phase, of_kept = dict[str, int](), 0
        for number, nbytes in self._changes[:at]:
            by_phase[self._phases[number]] = by_phase.get(self._phases[number], 0) + nbytes
            of_kept += nbytes * (number in numbers)
        return Peak(most, by_phase, of_kept)


@plain_surroundings()
def eager_peak(function: Callable[..., Any], arguments: Arguments, step: CapturedStep, casting: Any = None) -> Peak:
    """Return the memory of an eager forward and backward pass beyond weights and arguments; nothing is computed.

    The backward pass runs if the step trains; `Peak.kept` is then the part of the gradients. A forward pass records
    derivatives only if the model takes derivatives itself.

    Args:
        function: The module or function of the step.
        arguments: Arguments of a call.
        step: The captured step, which says where its loss is.
        casting: Context of the forward pass, such as `torch.autocast`. Default: none.
    """
    if step.trained:
        return _run(function, arguments, step, set(step.trained), casting)[0]
    module = function if isinstance(function, nn.Module) else nn.Module()
    peak, differentiates = _run(function, arguments, step, set(), casting)
    own = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    return _run(function, arguments, step, own, casting)[0] if differentiates else peak


def _run(
    function: Callable[..., Any], arguments: Arguments, step: CapturedStep, trained: set[str], casting: Any
) -> tuple[Peak, bool]:
    """Return the memory of a run on stand-ins, and whether it takes derivatives; `trained` weights need a gradient."""
    module = function if isinstance(function, nn.Module) else nn.Module()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    mode.cache_enabled = False
    state = {id(one): fake_of(mode, one, given.name in trained) for given, one in module_state(module).items()}
    inputs = [*stand_ins(mode, arguments).values()]
    weights = [one for one in state.values() if one.requires_grad]
    with (
        ONE_AT_A_TIME, torch.random.fork_rng(devices=[]), mode, swapped(module, state), static_forms(FreeSlots()),
        torch.enable_grad(), Allocations() as made,
    ):  # fmt: skip
        with casting or nullcontext():
            results = flatten(arguments.pass_to(function, inputs))[0]
        if step.trained:
            made.phase = "backward"
            scalars = [one for one in results if one.dim() == 0 and one.requires_grad]
            (scalars[0] if step.loss is None else results[step.loss]).backward()
        peak = made.peak([one.grad for one in weights if one.grad is not None])
    return peak, made.differentiates
