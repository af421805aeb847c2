"""Parameters that an optimizer treats alike, side by side in one tensor of the step's own."""

import copy
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
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

# Each element's update depends on that element and on numbers alone, that many parameters may be updated as one.
ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD")
# A parameter of as many elements is stepped where it lies: to copy it would cost more than operations that are saved.
_LARGE = 2**20


def is_elementwise(kind: type) -> bool:
    """Whether a kind of optimizer treats every element alike; one that torch does not know says so by `elementwise`.

    Example:
        >>> is_elementwise(torch.optim.Adam), is_elementwise(torch.optim.Adafactor)
        (True, False)
    """
    of_torch = kind.__module__.startswith("torch.optim") and kind.__name__ in ELEMENTWISE
    return bool(getattr(kind, "elementwise", of_torch))


def refuse_whole_tensors(optimizer: Optimizer, why: str) -> None:
    """Refuses an optimizer that does more than treat every element alike.

    Raises:
        ValueError: it does.
    """
    if not is_elementwise(type(optimizer)):
        raise ValueError(
            f"{why}, but {type(optimizer).__name__} looks at whole rows or tensors. Take an optimizer that treats "
            f"every element alike: one of {', '.join(ELEMENTWISE)}."
        )


class FlatParameters:
    """Parameters of one group and type, which are stepped as one.

    Several of them are copied, before an update, to memory of the step's own where they lie side by side, and back
    after it. One alone is stepped in its own memory.

    Args:
        group: Number of their group in the optimizer.
        members: The parameters.
        accumulates: Whether an update joins several gradients, so that their sum needs memory of its own.
        total_type: Type of that sum; None for the parameters' own.
        part: Which of how many parts of them this process updates, where each process keeps a part of the state; of
            what is not divisible it updates all.

    Attributes:
        is_sharded: Whether they are this process's own, so that no other process has gradients for them.
        flat: All of them, one after the other, with their joined gradient; one alone itself.
        gradient: If one micro-batch's gradient goes. Its parts are `gradient_views`.
        total: What an update applies: the gradient itself, or the sum of several. Its parts are `total_views`.
        own: What this process updates: `flat` itself, or a part of it in the same memory.
        take_values: Copies the members to `flat`, if that is other memory.
        give_values: Copies `flat` to the members, if these are other memory.
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
        self._is_joined = len(members) > 1 or not is_dense(members[0])
        # A single parameter keeps its shape: optimizers such as Adafactor look at rows and columns.
        data = torch.cat([p.detach().reshape(-1) for p in members]) if len(members) > 1 else members[0].detach()
        self.flat = nn.Parameter(data.clone() if self._is_joined else data)
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
        self._address = self.flat.data_ptr()  # a storage may itself be moved, and with it all tensors that share it
        self._forget_shown()

    def _forget_shown(self) -> None:
        self._published: dict[str, Any] = {}
        self._counts: dict[str, Tensor] = {}  # the numbers among it that say how far they are
        self._count_bytes: list[np.ndarray] = []
        self._told: list[bytes] = []  # what the counts were when they were shown
        self._shown: list[Tensor] = []
        self._addresses: list[int] = []

    def follow_memory(self) -> bool:
        """Takes the memory in which the members are now; whether they are stepped there, and it is another one."""
        if self._is_joined:
            members, joined = [p.detach() for p in self.members], self._split(self.flat.detach())
            self.take_values, self.give_values = copier(members, joined), copier(joined, members)
            return False
        now, before = self.members[0].detach(), self._address
        self.flat.data, self._address = now, now.data_ptr()
        if self.is_divided:
            self.own.data = now.view(-1)[self._range]
        return self._address != before

    def adopt(self, optimizer: Optimizer, state: dict[Any, Any]) -> bool:
        """Takes the state that the user's optimizer has of the members; False, and nothing, if they differ in it."""
        self._forget_shown()
        state.pop(self.own, None)
        states = [optimizer.state.get(p, {}) for p in self.members]
        if len(set(map(_progress, states))) > 1:
            return False
        if states[0]:
            state[self.own] = {key: self._join([s[key] for s in states]) for key in states[0]}
        return True

    def publish(self, optimizer: Optimizer, state: Mapping[str, Any]) -> bool:
        """Shows the state to the user's optimizer: numbers of elements where they are, everything else copied.

        Returns:
            Whether it shows anything that it did not hold before.
        """
        anew = False
        for key, part in state.items():
            is_elementwise = _is_elementwise(part, self.own)
            if key in self._counts and not is_elementwise:
                self._counts[key].copy_(part)
            elif self._published.get(key, self) is not part:
                anew, self._published[key] = True, part
                shown: Sequence[Any] = [part] * len(self.members)
                if is_elementwise and (self.is_divided or len(self.members) > 1):
                    shown = apart(part, self._shown_shapes())
                elif is_elementwise and not part.dim():
                    self._counts[key] = part
                elif isinstance(part, Tensor) and not is_elementwise:
                    # One row per member, so that one copy refreshes the step count of all of them.
                    rows = part.expand(len(self.members), *part.shape)
                    self._counts[key] = rows.clone(memory_format=torch.contiguous_format)
                    shown = apart(self._counts[key], [part.shape] * len(self.members))
                for p, own in zip(self.members, shown, strict=True):
                    optimizer.state[p][key] = own
        if anew:
            held = [optimizer.state[p][key] for key in self._published for p in self.members]
            self._shown = [one for one in held if isinstance(one, Tensor)]
            self._addresses = list(map(Tensor.data_ptr, self._shown))
            self._count_bytes = [c.detach().reshape(-1).view(torch.uint8).numpy() for c in self._counts.values()]
        self._told = [count.tobytes() for count in self._count_bytes]
        return anew

    @property
    def is_as_shown(self) -> bool:
        """Whether what was shown is where it was, and counts are what they were; other edits in place are followed."""
        told = [count.tobytes() for count in self._count_bytes]
        return told == self._told and list(map(Tensor.data_ptr, self._shown)) == self._addresses

    def cut(self, parts: int) -> nn.Parameter:
        """The largest of that many parts of them, with its joined gradient."""
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
        """Whether each process may update a part: all have them alike, and one element lies next to the other."""
        return not self.is_sharded and self.flat.dim() > 0 and self.flat.is_contiguous()

    @property
    def is_divided(self) -> bool:
        """Whether this process updates a part of them, and gets the rest from others."""
        return self.own is not self.flat

    def _shown_shapes(self) -> list[Sequence[int]]:
        """Of each member's state as it is shown: like the member; of a part flat, empty if it has none of a member."""
        if not self.is_divided:
            return [p.shape for p in self.members]
        ends = [*itertools.accumulate((p.numel() for p in self.members), initial=0)]
        inside = [min(max(end, self._range.start), self._range.stop) for end in ends]
        return [(end - start,) for start, end in itertools.pairwise(inside)]

    def _join(self, parts: Sequence[Any]) -> Any:
        """A piece of the state, of what `publish` gave out or of the whole states of all members."""
        is_piece = self.is_divided and isinstance(parts[0], Tensor) and parts[0].dim() > 0
        if not is_piece and not _is_elementwise(parts[0], self.members[0]):
            return copy.deepcopy(parts[0])
        joined = torch.cat([part.reshape(-1) for part in parts])
        if joined.numel() != self.own.numel():  # whole states, of which this process keeps a part
            joined = joined[self._range].clone()
        joined = joined.view(self.own.shape)
        # The update is captured for state that lies as its weights do.
        return joined if self.own.is_contiguous() else torch.empty_like(self.own, dtype=joined.dtype).copy_(joined)


def flatten_groups(
    optimizer: Optimizer, trained: Set[nn.Parameter], options: StepOptions, part: tuple[int, int]
) -> list[FlatParameters]:
    """The trained parameters of an optimizer, those that it treats alike as one; alone if it looks at whole ones.

    Of what all processes have alike, this one updates a part: number and count.
    """
    flat, elementwise = [], is_elementwise(type(optimizer))
    accumulates = options.gradient_accumulation * options.replication_factor > 1
    for number, group in enumerate(optimizer.param_groups):
        by_kind: dict[Any, list[nn.Parameter]] = defaultdict(list)
        for p in group["params"]:
            if p in trained:
                # A parameter without dimensions stays alone: its state could not be distinguished from a step count.
                alike = elementwise and p.dim() and p.is_contiguous() and p.numel() < _LARGE
                kind = (p.dtype, is_sharded(p), _progress(optimizer.state.get(p, {})))
                by_kind[kind if alike else id(p)].append(p)
        for members in by_kind.values():
            total_type = gradient_type(options, optimizer, members[0].dtype)
            flat.append(FlatParameters(number, members, accumulates, total_type, part))
    return flat


def _progress(state: Mapping[str, Any]) -> str:
    """What parameters that are stepped as one must have alike: which state there is, of what type, and all counts."""
    tensors = {key: part for key, part in state.items() if isinstance(part, Tensor)}
    told = {key: part.dtype if part.dim() else part.item() for key, part in tensors.items()}
    return repr(sorted({**state, **told}.items(), key=str))


def _is_elementwise(part: Any, parameter: Tensor) -> bool:
    return isinstance(part, Tensor) and part.shape == parameter.shape
