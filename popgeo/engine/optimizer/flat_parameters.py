"""Parameters that an optimizer treats alike, side by side in one tensor."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Block:
    """Parameters of one group and type, in one tensor."""

    def __init__(self, group: int, members: Sequence[nn.Parameter], accumulates: bool) -> None:
        self.group, self.members = group, list(members)
        # A single parameter keeps its shape: optimizers such as Adafactor look at rows and columns.
        data = members[0].detach() if len(members) == 1 else torch.cat([p.detach().reshape(-1) for p in members])
        self.flat = nn.Parameter(data.clone())
        self.gradient = torch.zeros_like(self.flat.detach())
        self.total = torch.zeros_like(self.gradient) if accumulates else self.gradient
        self.flat.grad = self.total
        self.views = self.split(self.flat.detach())
        self.published: dict[str, Tensor] = {}
        self.gradient_views = self.split(self.gradient)
        self.follow()

    def split(self, flat: Tensor) -> list[Tensor]:
        if len(self.members) == 1:
            return [flat]
        sizes = [p.numel() for p in self.members]
        return [part.view(p.shape) for part, p in zip(flat.view(-1).split(sizes), self.members, strict=True)]

    def follow(self) -> None:
        for parameter, view in zip(self.members, self.views, strict=True):
            if parameter.data_ptr() != view.data_ptr() or parameter.dtype != view.dtype:
                view.copy_(parameter.detach())
                parameter.data = view

    def adopt(self, optimizer: Optimizer, state: dict[Any, Any]) -> None:
        """Takes the state that the user's optimizer holds for each member, if it holds any."""
        self.published = {}
        states = [optimizer.state.get(p, {}) for p in self.members]
        if all(states):
            state[self.flat] = {key: self._join([s[key] for s in states]) for key in states[0]}
        else:
            state.pop(self.flat, None)

    def _join(self, parts: Sequence[Any]) -> Any:
        if self._is_elementwise(parts[0], self.members[0]):
            return torch.cat([part.reshape(-1) for part in parts]).view(self.flat.shape)
        return copy.deepcopy(parts[0])

    def _is_elementwise(self, part: Any, parameter: Tensor) -> bool:
        return isinstance(part, Tensor) and part.shape == parameter.shape and part.dim() > 0

    def publish(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        """Shows the state to the user's optimizer: one number per element as views, everything else copied."""
        for key, part in state.items():
            if not isinstance(part, Tensor):
                for p in self.members:
                    optimizer.state[p][key] = part
            elif self._is_elementwise(part, self.flat):
                if self.published.get(key) is not part:
                    self.published[key] = part
                    for p, view in zip(self.members, self.split(part), strict=True):
                        optimizer.state[p][key] = view
            elif key in self.published:
                self.published[key].copy_(part)
            else:
                # One row per member, so that one copy refreshes the step count of all of them.
                self.published[key] = part.expand(len(self.members), *part.shape).clone()
                for p, own in zip(self.members, self.published[key].unbind(), strict=True):
                    optimizer.state[p][key] = own
