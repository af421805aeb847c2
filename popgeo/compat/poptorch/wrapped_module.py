"""Modules that a training model holds, and modules with different parameters per replica."""

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
    """Note the training model that holds a module, without keeping it alive."""
    _HELD[module] = weakref.ref(owner)


def is_wrapped(module: nn.Module) -> bool:
    """Check whether a training model holds a module.

    Example:
        >>> is_wrapped(nn.Linear(2, 2))
        False
    """
    return module in _HELD


def unwrap(module: nn.Module) -> None:
    """Release a module from its training model, so that another one can hold it."""
    _HELD.pop(module, None)


def destroy(self: nn.Module) -> None:
    """Destroy the training model that holds a module, so that the module can be wrapped again."""
    held = _HELD[self]() if is_wrapped(self) else None
    if held is not None:
        held.destroy()
    unwrap(self)


def copyWeightsToHostIfNeeded(self: nn.Module) -> bool:
    """Return whether the weights were out of date: always False."""
    return False


def autocast(self: nn.Module, enabled: bool = True) -> nn.Module:
    """Return the module unchanged. PopTorch 2 cast inside of it; here only `poptorch.autocast()` casts."""
    recorded("Module.autocast", "the module computes in the types of its weights; use poptorch.autocast() to cast")
    return self


# Programs call these methods on any module.
nn.Module.autocast = autocast  # type: ignore[attr-defined]
nn.Module.destroy = destroy  # type: ignore[attr-defined]
nn.Module.copyWeightsToHostIfNeeded = copyWeightsToHostIfNeeded  # type: ignore[attr-defined]


def leave(*of_module: Any) -> None:
    """Do nothing: wrapped modules keep their classes, and PyG's data need no parser."""


def replicaGrouping(self: nn.Parameter, comm_group_type: CommGroupType, shards: int, *mode: Any) -> None:
    """Set the replicas that share a parameter: all, groups of a size, or none. Call it before compiling."""
    self.replica_grouping = (CommGroupType(comm_group_type), shards)  # type: ignore[attr-defined]


nn.Parameter.replicaGrouping = replicaGrouping  # type: ignore[attr-defined]  # programs call it on any parameter


def as_replicas_see(model: nn.Module, options: StepOptions) -> tuple[nn.Module, Tensor | None]:
    """Return a module that passes each replica its own rows of the parameters with replica groups.

    Returns:
        The module, and the replica numbers to pass as `replica_number`. None if all replicas share all parameters.

    Raises:
        Error: Groups do not divide the replicas, or a parameter does not have one row per group.
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
    seen.__dict__ = model.__dict__  # shared, so that both always have the same attributes
    local = torch.tensor(Replicas.of_this_process(options.replication_factor).local)
    return seen, local.repeat(options.batch_factor // options.replication_factor)


def _row(name: str, how: tuple[CommGroupType, int], model: nn.Module, options: StepOptions) -> Any:
    """Return a function that selects the row of a replica's group."""
    (kind, size), shape = how, model.get_parameter(name).shape
    groups = options.replication_factor // (size := 1 if kind == CommGroupType.NoGrouping else max(1, size))
    if groups * size != options.replication_factor or shape[:1] != (groups,):
        raise Error(said("row", name=name, shape=list(shape), size=size, replication_factor=options.replication_factor))
    divisor = 1 if kind == CommGroupType.Orthogonal else size
    return lambda parameter, number: parameter.index_select(0, number // divisor % groups).squeeze(0)
