"""Flat parameters: several parameters joined in one tensor, so that an optimizer updates them at once."""

import copy
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from popgeo.engine.optimizer.gradient_scaling import set_gradient
from popgeo.engine.optimizer.joined_memory import apart, copier, is_dense
from popgeo.engine.optimizer.precision import gradient_type
from popgeo.engine.replicas import is_sharded, part_of
from popgeo.engine.step_options import StepOptions
from popgeo.native.tensor_forms import same_forms

# torch's optimizers that update each element by itself, so that parameters may be joined.
ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD")
# A parameter with at least this many elements stays alone: copying it would take longer than the saved operations.
_LARGE = 2**20


def is_elementwise(kind: type) -> bool:
    """Check whether a class of optimizers updates each element by itself.

    An optimizer outside of torch declares this with a class attribute `elementwise`.

    Example:
        >>> is_elementwise(torch.optim.Adam), is_elementwise(torch.optim.Adafactor)
        (True, False)
    """
    of_torch = kind.__module__.startswith("torch.optim") and kind.__name__ in ELEMENTWISE
    return bool(getattr(kind, "elementwise", of_torch))


def refuse_whole_tensors(optimizer: Optimizer, why: str) -> None:
    """Check that an optimizer updates each element by itself.

    Args:
        optimizer: Optimizer to check.
        why: Start of the message: the feature that needs such an optimizer.

    Raises:
        ValueError: The optimizer looks at rows or whole tensors.
    """
    if not is_elementwise(type(optimizer)):
        raise ValueError(
            f"{why}, but {type(optimizer).__name__} looks at whole rows or tensors. Use an optimizer that updates "
            f"each element by itself: one of {', '.join(ELEMENTWISE)}."
        )


class FlatParameters:
    """Parameters of one group and type, joined in one flat parameter that an optimizer updates at once.

    Several members are copied to the flat parameter before an update, and back after it. A single member is updated in
    its own memory.

    Args:
        group: Number of the members' group in the optimizer.
        members: Parameters to join.
        accumulates: Whether an update adds up several gradients, so that their sum needs its own memory.
        total_type: Type of this sum. Default: the type of the parameters.
        part: Number of the part that this process updates, and number of parts. A process updates all of a flat
            parameter that cannot be divided.

    Attributes:
        is_sharded: Whether the members exist in this process only, so that no other process has gradients for them.
        is_joined: Whether `flat` is a copy of the members.
        flat: Flat parameter with the accumulated gradient.
        gradient: Gradient of one micro-batch. `gradient_views` are its pieces for the members.
        total: Gradient that an update applies: `gradient` itself, or a sum. `total_views` are its pieces.
        own: Part of the flat parameter that this process updates, in the same memory.
        take_values: Function that copies the members to `flat`, if they have different memory.
        give_values: Function that copies `flat` to the members, if they have different memory.
    """

    def __init__(
        self,
        group: int,
        members: Sequence[nn.Parameter],
        accumulates: bool,
        total_type: torch.dtype | None,
        part: tuple[int, int],
    ) -> None:
        self.group, self.members, self.is_sharded = group, list(members), is_sharded(members[0])
        self.is_joined = len(members) > 1 or not is_dense(members[0])
        # A single member keeps its shape: optimizers such as Adafactor look at rows and columns.
        data = torch.cat([p.detach().reshape(-1) for p in members]) if len(members) > 1 else members[0].detach()
        self.flat = nn.Parameter(data.clone() if self.is_joined else data)
        self.gradient = torch.zeros_like(self.flat.detach())
        dtype = total_type or self.gradient.dtype
        own = accumulates or dtype != self.gradient.dtype
        self.total = torch.zeros_like(self.gradient, dtype=dtype) if own else self.gradient
        set_gradient(self.flat, self.total)
        self.gradient_views = self._split(self.gradient)
        self.total_views = self._split(self.total)
        self.own = self.flat
        if part[1] > 1 and self.is_divisible:
            self._range = part_of(self.flat.numel(), *part)
            self.own = nn.Parameter(self.flat.detach().view(-1)[self._range])
            set_gradient(self.own, self.total.view(-1)[self._range])
        self.take_values = self.give_values = lambda: False
        self._address = self.flat.data_ptr()  # tensors that share a storage move with it
        self._forget_shown()

    def _forget_shown(self) -> None:
        self._published: dict[str, Any] = {}
        self._counts: dict[str, Tensor] = {}  # step counts: one row per member
        self._count_bytes: list[tuple[np.ndarray, np.ndarray]] = []  # of these rows, and of the count that they show
        self._shown_counts: list[bytes] = []
        self._has_shown_memory: Callable[[], bool] = lambda: True

    def follow_memory(self) -> bool:
        """Use the present memory of the members. Return whether updates run in that memory and it has changed."""
        if self.is_joined:
            members, joined = [p.detach() for p in self.members], self._split(self.flat.detach())
            self.take_values, self.give_values = copier(members, joined), copier(joined, members)
            return False
        now, before = self.members[0].detach(), self._address
        self.flat.data, self._address = now, now.data_ptr()
        if self.is_divided:
            self.own.data = now.view(-1)[self._range]
        return self._address != before

    def adopt(self, optimizer: Optimizer, state: dict[Any, Any]) -> bool:
        """Join the members' states in the user's optimizer to one state of `own`.

        Args:
            optimizer: The user's optimizer.
            state: State of the flat optimizer, which is changed.

        Returns:
            False, without a state, if the members have different step counts or kinds of state.
        """
        self._forget_shown()
        state.pop(self.own, None)
        states = [optimizer.state.get(p, {}) for p in self.members]
        if len(set(map(_progress, states))) > 1:
            return False
        if states[0]:
            state[self.own] = {key: self._join([s[key] for s in states]) for key in states[0]}
        return True

    def publish(self, optimizer: Optimizer, state: Mapping[str, Any]) -> bool:
        """Put the state of `own` into the user's optimizer: views of elementwise state, copies of step counts.

        Args:
            optimizer: The user's optimizer, which is changed.
            state: State of `own`.

        Returns:
            Whether the user's optimizer received a new object. Later changes in place need none.
        """
        if not state:
            return False
        new = {key: part for key, part in state.items() if self._published.get(key, self) is not part}
        has_new = max([self._show(optimizer, key, part) for key, part in new.items()], default=False)
        if has_new:
            held = [optimizer.state[p][key] for key in self._published for p in self.members]
            self._has_shown_memory = same_forms([one for one in held if isinstance(one, Tensor)], only_memory=True)
        if new:
            rows = len(self.members)
            self._count_bytes = [(_bytes_of(one, rows), _bytes_of(state[key], 1)) for key, one in self._counts.items()]
        for shown, own in self._count_bytes:
            shown[...] = own
        self._shown_counts = [rows.tobytes() for rows, _ in self._count_bytes]
        return has_new

    def _show(self, optimizer: Optimizer, key: str, part: Any) -> bool:
        """Publish a new piece of state. Return whether the user's optimizer received a new object."""
        is_elementwise, rows = _is_elementwise(part, self.own), self._counts.get(key)
        # A part in several pieces of memory is copied, so it counts as new each time.
        self._published[key] = part if is_elementwise or not isinstance(part, Tensor) or part.is_contiguous() else None
        if isinstance(part, Tensor) and rows is not None and rows.dim() > part.dim() and rows.dtype is part.dtype:
            return False  # `publish` copies it to its rows
        shown: Sequence[Any] = [part] * len(self.members)
        if is_elementwise and (self.is_divided or len(self.members) > 1):
            shown = apart(part, self._shown_shapes())
        elif is_elementwise and not part.dim():
            self._counts[key] = part
        elif isinstance(part, Tensor) and not is_elementwise:
            # One row per member, so that one copy updates the step counts of all members.
            rows = part.expand(len(self.members), *part.shape)
            self._counts[key] = rows.clone(memory_format=torch.contiguous_format)
            shown = apart(self._counts[key], [part.shape] * len(self.members))
        for p, own in zip(self.members, shown, strict=True):
            optimizer.state[p][key] = own
        return True

    @property
    def is_as_shown(self) -> bool:
        """Whether the published state still has its memory and step counts. Other edits in place reach `own`."""
        counts = [rows.tobytes() for rows, _ in self._count_bytes]
        return counts == self._shown_counts and self._has_shown_memory()

    def cut(self, parts: int) -> nn.Parameter:
        """Return the largest of several equal parts of the flat parameter, with its gradient."""
        size = -(-self.flat.numel() // (parts if self.is_divisible else 1))
        data = self.flat.detach()
        cut = nn.Parameter(data.reshape(-1)[:size] if data.dim() else data)
        set_gradient(cut, self.total.reshape(-1)[:size].view(cut.shape))
        return cut

    def _split(self, flat: Tensor) -> list[Tensor]:
        if len(self.members) == 1:
            return [flat]
        sizes = [p.numel() for p in self.members]
        return [part.view(p.shape) for part, p in zip(flat.view(-1).split(sizes), self.members, strict=True)]

    @property
    def is_divisible(self) -> bool:
        """Whether each process may update a part: all processes have the same contiguous values."""
        return not self.is_sharded and self.flat.dim() > 0 and self.flat.is_contiguous()

    @property
    def is_divided(self) -> bool:
        """Whether this process updates a part, and other processes update the rest."""
        return self.own is not self.flat

    def _shown_shapes(self) -> list[Sequence[int]]:
        """Return the shape of each member's published state: the member's shape, or its number of elements in `own`."""
        if not self.is_divided:
            return [p.shape for p in self.members]
        ends = [*itertools.accumulate((p.numel() for p in self.members), initial=0)]
        inside = [min(max(end, self._range.start), self._range.stop) for end in ends]
        return [(end - start,) for start, end in itertools.pairwise(inside)]

    def _join(self, parts: Sequence[Any]) -> Any:
        """Join one piece of the members' states, either published by `publish` or of whole members."""
        is_piece = self.is_divided and isinstance(parts[0], Tensor) and parts[0].dim() > 0
        if not is_piece and not _is_elementwise(parts[0], self.members[0]):
            return copy.deepcopy(parts[0])
        joined = torch.cat([part.reshape(-1) for part in parts])
        if joined.numel() != self.own.numel():  # state of whole members: take the part of this process
            joined = joined[self._range].clone()
        joined = joined.view(self.own.shape)
        # A captured update expects the strides of the weights.
        return joined if self.own.is_contiguous() else torch.empty_like(self.own, dtype=joined.dtype).copy_(joined)


def flatten_groups(
    optimizer: Optimizer, trained: Set[nn.Parameter], options: StepOptions, part: tuple[int, int]
) -> list[FlatParameters]:
    """Join the trained parameters of an optimizer to flat parameters.

    Args:
        optimizer: The user's optimizer. Its parameters stay alone if it looks at whole tensors.
        trained: Parameters that have a gradient.
        options: Options of the run.
        part: Number of the part that this process updates, and number of parts.
    """
    flat, is_joinable = [], is_elementwise(type(optimizer))
    accumulates = options.gradient_accumulation * options.replication_factor > 1
    for number, group in enumerate(optimizer.param_groups):
        by_kind: dict[Any, list[nn.Parameter]] = defaultdict(list)
        for p in group["params"]:
            if p in trained:
                # A parameter without dimensions stays alone: its state could not be distinguished from a step count.
                joins = is_joinable and p.dim() and p.is_contiguous() and p.numel() < _LARGE
                kind = (p.dtype, is_sharded(p), _progress(optimizer.state.get(p, {})))
                by_kind[kind if joins else id(p)].append(p)
        for members in by_kind.values():
            total_type = gradient_type(options, optimizer, members[0].dtype)
            flat.append(FlatParameters(number, members, accumulates, total_type, part))
    return flat


def _progress(state: Mapping[str, Any]) -> str:
    """Return names, types and step counts of a state as text. Joined parameters must have the same text."""
    tensors = {key: part for key, part in state.items() if isinstance(part, Tensor)}
    values = {key: part.dtype if part.dim() else part.item() for key, part in tensors.items()}
    return repr(sorted({**state, **values}.items(), key=str))


def _is_elementwise(part: Any, parameter: Tensor) -> bool:
    return isinstance(part, Tensor) and part.shape == parameter.shape


def _bytes_of(tensor: Tensor, rows: int) -> np.ndarray:
    """Return a tensor's memory as bytes, in this number of rows."""
    found: np.ndarray = tensor.detach().reshape(rows, -1).view(torch.uint8).numpy()
    return found
