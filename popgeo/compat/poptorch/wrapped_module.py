"""A module that a training model holds, and a module of which each replica sees its own parameters."""

import copyreg
import inspect
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from popgeo.compat.account import honoured
from popgeo.compat.poptorch.enums import CommGroupType
from popgeo.compat.poptorch.errors import Error
from popgeo.compat.sentences import said
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_options import StepOptions


class _Wrapped:
    """Marks the classes that `wrap` makes."""


def wrap(module: nn.Module, owner: Any) -> None:
    """Gives a module the methods `destroy` and `copyWeightsToHostIfNeeded`; it stays an instance of its own class.

    Args:
        module: Changes its class.
        owner: The training model that holds it, whose methods of these names are called; not kept alive by the module.
    """
    own: Any = type(module)
    held_by = weakref.ref(owner)

    def destroy(self: nn.Module) -> None:
        """Lets the module go, so that it can be wrapped again."""
        if (held := held_by()) is not None:
            held.destroy()
        unwrap(self)

    def reduce(self: nn.Module, protocol: int) -> Any:
        """Pickles and copies as an instance of the module's own class."""
        make, arguments, *state = own.__reduce_ex__(self, protocol)
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle checks that it makes the object's class
            make, arguments = copyreg._reconstructor, (own, object, None)  # type: ignore[attr-defined]
        return (make, arguments, *state)

    names = {"destroy": destroy, "__reduce_ex__": reduce, "__wrapped__": own, "__module__": own.__module__}
    names["copyWeightsToHostIfNeeded"] = lambda _: False  # they are up to date always
    module.__class__ = type(f"Poptorch{own.__name__}", (own, _Wrapped), names)


def is_wrapped(module: nn.Module) -> bool:
    """Whether a training model holds a module.

    Example:
        >>> is_wrapped(nn.Linear(2, 2))
        False
    """
    return isinstance(module, _Wrapped)


def unwrap(module: nn.Module) -> None:
    """Gives a module its own class back."""
    if is_wrapped(module):
        module.__class__ = type(module).__mro__[1]


def leave(*of_module: Any) -> None:
    """Does nothing: weights and buffers of a wrapped module keep their own classes, and PyG's data need no parser."""


@contextmanager
def unwrapped(module: nn.Module) -> Iterator[None]:
    """A module has its own class while the block runs: a kept step is found by the class's source."""
    held = type(module)
    unwrap(module)
    try:
        yield
    finally:
        module.__class__ = held


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
