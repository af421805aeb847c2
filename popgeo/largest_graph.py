"""Size of the largest graph in a dataset: loaders attach it to the tensor `batch`, and models read it there.

A captured model cannot read values, so it cannot count the nodes of the largest graph by itself. A loader knows this
number for its whole dataset and attaches it; the capture passes it on to the model.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor

_NAME = "_popgeo_largest_graph"


@dataclass
class LargestGraph:
    """The size of the largest graph during one capture.

    Attributes:
        num_nodes: Nodes of the largest graph in all batches to come; None if unknown.
        was_asked: Whether the model has read `num_nodes`, so that the captured program depends on it.
    """

    num_nodes: int | None
    was_asked: bool = False


_known: ContextVar[LargestGraph | None] = ContextVar("largest graph", default=None)


def note(batch: Tensor, num_nodes: int) -> None:
    """Note on a vector `batch` that no graph of its dataset has more than `num_nodes` nodes.

    Example:
        >>> import torch
        >>> batch = torch.tensor([0, 0, 1])
        >>> note(batch, 29)
        >>> noted([torch.ones(3), batch])
        29
    """
    setattr(batch, _NAME, num_nodes)


def noted(tensors: Iterable[Tensor]) -> int | None:
    """Return the largest number that is noted on the tensors; None without a note."""
    return max((number for one in tensors if (number := getattr(one, _NAME, None)) is not None), default=None)


def may_exceed(tensors: Iterable[Tensor], num_nodes: int | None) -> bool:
    """Check whether a graph of the batch may have more than `num_nodes` nodes; None allows any number."""
    if num_nodes is None:
        return False
    largest = noted(tensors)
    return largest is None or largest > num_nodes


@contextmanager
def capturing_for(num_nodes: int | None) -> Iterator[LargestGraph]:
    """Tell models that are captured in this context that no graph has more than `num_nodes` nodes."""
    known = LargestGraph(num_nodes)
    token = _known.set(known)
    try:
        yield known
    finally:
        _known.reset(token)


def ask() -> int | None:
    """Return the number of nodes of the largest graph for the current capture; None if unknown."""
    known = _known.get()
    if known is None:
        return None
    known.was_asked = True
    return known.num_nodes
