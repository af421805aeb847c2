"""How many nodes the largest graph of a dataset has: noted at the vectors `batch` of its batches, asked for by models.

What is captured knows no values, so a model that needs as many slots as the largest graph has neighbors cannot look it
up. A loader knows it of the whole dataset, notes it, and what captures a model passes it on.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor

_NAME = "_popgeo_largest_graph"


@dataclass
class LargestGraph:
    """What is known while a model is captured.

    Attributes:
        num_nodes: Nodes of the largest graph of all batches to come; None if nothing is known.
        was_asked: Whether the model depends on it.
    """

    num_nodes: int | None
    was_asked: bool = False


_known: ContextVar[LargestGraph | None] = ContextVar("largest graph", default=None)


def note(batch: Tensor, num_nodes: int) -> None:
    """Notes at a vector `batch` that no graph of its dataset has more nodes.

    Example:
        >>> import torch
        >>> batch = torch.tensor([0, 0, 1])
        >>> note(batch, 29)
        >>> noted([torch.ones(3), batch])
        29
    """
    setattr(batch, _NAME, num_nodes)


def noted(tensors: Iterable[Tensor]) -> int | None:
    """The largest number that is noted at some of the tensors; None if there is none."""
    return max((number for one in tensors if (number := getattr(one, _NAME, None)) is not None), default=None)


def may_exceed(tensors: Iterable[Tensor], num_nodes: int | None) -> bool:
    """Whether a graph of a batch may have more nodes than that; None allows any number."""
    if num_nodes is None:
        return False
    largest = noted(tensors)
    return largest is None or largest > num_nodes


@contextmanager
def capturing_for(num_nodes: int | None) -> Iterator[LargestGraph]:
    """Models that are captured in this context may have graphs of that many nodes and no more."""
    known = LargestGraph(num_nodes)
    token = _known.set(known)
    try:
        yield known
    finally:
        _known.reset(token)


def ask() -> int | None:
    """The nodes of the largest graph of what is captured now; None if that is not known."""
    known = _known.get()
    if known is None:
        return None
    known.was_asked = True
    return known.num_nodes
