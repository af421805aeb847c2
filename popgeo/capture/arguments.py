"""The arguments of a call, taken apart into tensors and the rest."""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from popgeo.capture.pytree import Structure, flatten, templates, unflatten


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
        """Those of a call `function(*args, **kwargs)`.

        Raises:
            TypeError: the function takes no such arguments.
        """
        tensors, structure = flatten(dict(signature.bind(*args, **kwargs).arguments))
        return cls(signature=signature, tensors=tensors, structure=structure)

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
        return function(*bound.args, **bound.kwargs)
