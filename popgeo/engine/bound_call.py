"""How a compiled step is called: as the model is, with arguments of the same shapes; others are refused by name."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from popgeo.capture.arguments import Arguments
from popgeo.capture.pytree import Structure, unflatten
from popgeo.capture.structures import first_difference, same


@dataclass(frozen=True, kw_only=True)
class BoundCall:
    """How a compiled step is called: as the function is that it was captured from, with arguments of the same shapes.

    Attributes:
        signature: The function's.
        arguments: How the tensors of a call nest, and what else it is given.
        result: How the tensors nest that it returns.
        remedy: What to do about other arguments, for the error that refuses them.
    """

    signature: inspect.Signature
    arguments: Structure
    result: Structure
    remedy: str

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Tensor], list[Any]]:
        """The tensors of a call, and the graph data among its arguments.

        Raises:
            ValueError: an argument differs from what the step was compiled for; the message names it.
        """
        given = Arguments.of(self.signature, args, kwargs)
        if not same(self.arguments, given.structure):
            given = given.like(self.arguments)
        if not same(self.arguments, given.structure):
            raise ValueError(f"{first_difference(self.arguments, given.structure)}. {self.remedy}")
        return given.tensors, given.graph_data

    def unflatten(self, results: Sequence[Tensor], graph_data: Sequence[Any]) -> Any:
        """What the function returns, where results that are graph data are like that of the call."""
        return unflatten(self.result, results, graph_data)
