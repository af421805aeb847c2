"""A program's own classes as arguments and results of its models."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from popgeo.capture.pytree import register_kind


class ICustomArgParser:
    """Says which tensors an object holds, and how one like it is made of others; a program fills in both."""

    def yieldTensors(self, struct: Any) -> Iterable[Tensor]:
        """The tensors of an object, always in the same order."""
        raise ValueError(f"{type(self).__name__} must say with yieldTensors which tensors a {type(struct)} holds.")

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[Tensor]) -> Any:
        """An object like the one given, of the tensors to come."""
        raise ValueError(
            f"{type(self).__name__} must say with reconstruct how a {type(original_structure)} is put together."
        )


def registerCustomArgParser(custom_type: type, parser: ICustomArgParser) -> None:
    """Lets objects of a class be arguments and results of models. PyG's data need no parser, and are read without one.

    Raises:
        ValueError: the first is no class, or the second no `ICustomArgParser`.

    Example:
        >>> class Pair:
        ...     def __init__(self, a, b):
        ...         self.a, self.b = a, b
        >>> class PairParser(ICustomArgParser):
        ...     def yieldTensors(self, struct):
        ...         yield struct.a
        ...         yield struct.b
        ...     def reconstruct(self, original_structure, tensor_iterator):
        ...         return Pair(next(tensor_iterator), next(tensor_iterator))
        >>> registerCustomArgParser(Pair, PairParser())
    """
    if not isinstance(custom_type, type):
        raise ValueError(f"registerCustomArgParser got {custom_type!r}, which is no class.")
    if not isinstance(parser, ICustomArgParser):
        raise ValueError(f"registerCustomArgParser got {type(parser).__name__}; pass an object of ICustomArgParser.")
    register_kind(custom_type, parser.yieldTensors, parser.reconstruct)
