"""The arguments of a call, taken apart into tensors and the rest."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from popgeo.capture.batch_arguments import BatchArguments
from popgeo.capture.pytree import SCALARS, Structure, flatten, templates, unflatten
from popgeo.capture.structures import reordered


@dataclass(frozen=True, kw_only=True, eq=False)
class Arguments:
    """What a function is called with.

    Attributes:
        signature: The function's.
        tensors: In order.
        structure: How they nest, by the names of the arguments, and what else the function is given.
    """

    signature: inspect.Signature
    tensors: Sequence[Tensor]
    structure: Structure

    @classmethod
    def of(cls, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Arguments":
        """Those of a call `function(*args, **kwargs)`, the same whether it names a default or leaves it out.

        A function of tensors that is given one batch takes the attributes that its arguments are named after.

        Raises:
            TypeError: the function takes no such arguments.
            ValueError: an argument is not an attribute of the batch.
        """
        args, kwargs = BatchArguments(signature)(args, kwargs)
        given = signature.bind(*args, **kwargs).arguments
        parts = {
            name: part for name, part in _with_defaults(signature, given) if not _is_default(signature, name, part)
        }
        tensors, structure = flatten(parts)
        return cls(signature=signature, tensors=tensors, structure=structure)

    def like(self, structure: Structure) -> "Arguments":
        """The same arguments with the parts of dictionaries and graph data in the order of another nest."""
        tensors, own = reordered(self.structure, self.tensors, structure)
        return Arguments(signature=self.signature, tensors=tensors, structure=own)

    @property
    def graph_data(self) -> list[Any]:
        """The graph data among them, in order."""
        return list(templates(self.structure))

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Arguments":
        """The same arguments with other tensors, also of other shapes."""
        own, structure = flatten(unflatten(self.structure, tensors))
        return Arguments(signature=self.signature, tensors=own, structure=structure)

    def pass_to(self, function: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """Calls the function with these tensors in place of its own.

        Example:
            >>> def scale(x, factor):
            ...     return factor * x
            >>> Arguments.of(inspect.signature(scale), [Tensor(3)], {"factor": 2}).pass_to(scale, [5])
            10
        """
        bound = inspect.BoundArguments(self.signature, OrderedDict(unflatten(self.structure, tensors)))
        bound.apply_defaults()
        return function(*bound.args, **bound.kwargs)


def _with_defaults(signature: inspect.Signature, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments of a call in the signature's order, with the plain values that it leaves to their defaults."""
    for name, parameter in signature.parameters.items():
        if name in given:
            yield name, given[name]
        elif parameter.default is not parameter.empty and isinstance(parameter.default, SCALARS):
            yield name, parameter.default


def _is_default(signature: inspect.Signature, name: str, part: Any) -> bool:
    """Whether an argument is the default itself, and more than a plain value: then a call may also leave it out."""
    return part is signature.parameters[name].default and not isinstance(part, SCALARS)
