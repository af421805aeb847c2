"""A module that a training model holds, and a module of which each replica sees its own parameters."""

import inspect
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from popgeo.compat.account import honoured, recorded
from popgeo.compat.poptorch.enums import CommGroupType
from popgeo.compat.poptorch.errors import Error, said
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_options import StepOptions

_HELD: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Any]]" = weakref.WeakKeyDictionary()


def wrap(module: nn.Module, owner: Any) -> None:
    """Notes which training model holds a module; it is not kept alive for that."""
    _HELD[module] = weakref.ref(owner)


def is_wrapped(module: nn.Module) -> bool:
    """Whether a training model holds a module.

    Example:
        >>> is_wrapped(nn.Linear(2, 2))
        False
    """
    return module in _HELD


def unwrap(module: nn.Module) -> None:
    """Forgets which training model holds a module, so that a different one can."""
    _HELD.pop(module, None)


def destroy(self: nn.Module) -> None:
    """Lets a module go, so that it can be wrapped again; without a training model that holds it, nothing happens."""
    held = _HELD[self]() if is_wrapped(self) else None
    if held is not None:
        held.destroy()
    unwrap(self)


def copyWeightsToHostIfNeeded(self: nn.Module) -> bool:
    """Whether weights had to be brought up to date: never."""
    return False


def autocast(self: nn.Module, enabled: bool = True) -> nn.Module:
    """Return the module: PopTorch 2 cast inside of it, and here `poptorch.autocast()` alone does."""
    recorded("Module.autocast", "the module computes in the types of its weights; poptorch.autocast() casts")
    return self


# Programs ask each module for these methods.
nn.Module.autocast = autocast  # type: ignore[attr-defined]
nn.Module.destroy = destroy  # type: ignore[attr-defined]
nn.Module.copyWeightsToHostIfNeeded = copyWeightsToHostIfNeeded  # type: ignore[attr-defined]


def leave(*of_module: Any) -> None:
    """Does nothing: weights and buffers of a wrapped module keep their own classes, and PyG's data need no parser."""


def replicaGrouping(self: nn.Parameter, comm_group_type: CommGroupType, shards: int, *mode: Any) -> None:
    """Which replicas share a parameter: all, groups of this size, or none (`NoGrouping`); set it before compiling."""
    self.replica_grouping = (CommGroupType(comm_group_type), shards)  # type: ignore[attr-defined]


nn.Parameter.replicaGrouping = replicaGrouping  # type: ignore[attr-defined]  # programs ask each parameter for it


def as_replicas_see(model: nn.Module, options: StepOptions) -> tuple[nn.Module, Tensor | None]:
    """The same module, of which each replica sees its own rows; then it takes their numbers, `replica_number`, too.

    Returns:
        The module, and the numbers to give it in a call, or None where all replicas see the same.

    Raises:
        Error: groups do not divide the replicas, or a parameter has not a row for each of them.
    """
    asked = {name: getattr(p, "replica_grouping", (CommGroupType.All, 0)) for name, p in model.named_parameters()}
    rows = {name: _row(name, how, model, options) for name, how in asked.items() if how[0] != CommGroupType.All}
    if not rows:
        return model, None
    honoured("Parameter.replicaGrouping")
    kind: Any = type(model)

    def forward(self: nn.Module, *args: Any, replica_number: Tensor, **kwargs: Any) -> Any:
        own = {name: row(self.get_parameter(name), replica_number) for name, row in rows.items()}
        with _reparametrize_module(self, own, tie_weights=True):
            return kind.forward(self, *args, **kwargs)

    own = list(inspect.signature(kind.forward).parameters.values())
    number = inspect.Parameter("replica_number", inspect.Parameter.KEYWORD_ONLY)
    at = len(own) - (own[-1].kind is inspect.Parameter.VAR_KEYWORD)
    forward.__signature__ = inspect.Signature([*own[:at], number, *own[at:]])  # type: ignore[attr-defined]
    seen: Any = object.__new__(type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__}))
    seen.__dict__ = model.__dict__  # the very same: what happens to one of them happens to both
    local = torch.tensor(Replicas.of_this_process(options.replication_factor).local)
    return seen, local.repeat(options.batch_factor // options.replication_factor)


def _row(name: str, how: tuple[CommGroupType, int], model: nn.Module, options: StepOptions) -> Any:
    """What gives a replica the row of its group."""
    (kind, size), shape = how, model.get_parameter(name).shape
    groups = options.replication_factor // (size := 1 if kind == CommGroupType.NoGrouping else max(1, size))
    if groups * size != options.replication_factor or shape[:1] != (groups,):
        raise Error(said("row", name=name, shape=list(shape), size=size, replication_factor=options.replication_factor))
    divisor = 1 if kind == CommGroupType.Orthogonal else size
    return lambda parameter, number: parameter.index_select(0, number // divisor % groups).squeeze(0)
