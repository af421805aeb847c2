"""A loader or batch sampler as the subject of claims: making it, and reading its epochs."""

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from torch import Tensor
from torch_geometric.data import Data

from popgeo.testing.claims import BrokenError, Case, NotTriedError, Subject, SubjectKind
from popgeo.testing.planted_graphs import numbers_of, planted_graphs, read_rows

ChannelRows = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class LoaderSubject(Subject):
    """A loader, given by the function that makes it as for training.

    The kit calls `make(graphs, seed=0, rank=0, world_size=1, num_workers=0)`, but passes an argument only for claims
    about it. A claim about an argument that the function does not accept is not tried.

    Attributes:
        read: Function that converts a batch to a mapping with `y` and some of `x`, `edge_index`, `edge_attr`, `batch`
            and the masks.
    """

    kind: ClassVar[SubjectKind] = SubjectKind.LOADER
    limit: ClassVar[int] = 100
    read: Callable[[Any], Any] = lambda batch: batch

    def __post_init__(self) -> None:
        if not all(graph.get("edge_attr") is not None and "y" in graph for graph in self.graphs) or not self.graphs:
            sizes = [graph.num_nodes for graph in self.graphs]
            object.__setattr__(self, "graphs", tuple(planted_graphs(sizes) if sizes else planted_graphs()))

    def prepare(self) -> None:
        """Make a loader and read a batch."""
        if not callable(self.what):
            raise ValueError(
                f"A {type(self.what).__name__} was given, but a {self.kind.value} is tried through a function that "
                "makes it from a list of graphs. Pass lambda graphs: ..., with seed, rank, world_size and num_workers "
                "if possible."
            )
        loader = self.made(self.graphs)
        for batch in islice(loader, 1):
            read_rows(self.read(batch), self.graphs)

    def made(self, graphs: Any, **choices: Any) -> Any:
        """Return a new loader of these graphs."""
        known = inspect.signature(self.what).parameters
        lacking = [name for name in choices if name not in known]
        if lacking and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            raise NotTriedError(f"the function that makes the {self.kind.value} takes no {' and no '.join(lacking)}")
        return self.what(list(graphs) if isinstance(graphs, tuple) else graphs, **choices)

    def epoch(self, loader: Any, case: Case, epoch: int | None = None, needs: Sequence[str] = ()) -> list[ChannelRows]:
        """Return the rows of each batch of an epoch; `epoch` is set if the loader accepts it."""
        if epoch is not None:
            set_epoch(loader, epoch)
        most = 4 * len(case.graphs) + 8
        batches: list[ChannelRows] = [read_rows(self.read(batch), case.graphs) for batch in islice(loader, most)]
        if len(batches) == most:
            raise BrokenError(f"an epoch of {len(case.graphs)} graphs continues after batch {most}")
        lacking = [name for name in needs if any(name not in rows for rows in batches)]
        if lacking:
            raise NotTriedError(f"batches have no {' and no '.join(lacking)}")
        return batches


class SamplerSubject(LoaderSubject):
    """A batch sampler with batches of graph indices, given by a function of a list of graphs."""

    kind: ClassVar[SubjectKind] = SubjectKind.SAMPLER


def set_epoch(loader: Any, number: int) -> bool:
    """Set the next epoch of a loader or its sampler, as trainers do; return whether it accepts one."""
    parts: list[Any] = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    for part in parts:
        if hasattr(part, "set_epoch"):
            part.set_epoch(number)
            return True
    return False


def order_of(batches: Sequence[ChannelRows]) -> list[int]:
    """Return the numbers of the real graphs, in order."""
    return [int(number) for rows in batches for number in numbers_of(rows)["graph"][rows["graphs_mask"]]]


def require_once(batches: Sequence[ChannelRows], graphs: Sequence[Data], loader: Any, where: str) -> None:
    """Raise BrokenError if graphs come twice, or are missing without being counted by the loader."""
    found = Counter(order_of(batches))
    doubled = [number for number, times in found.items() if times > 1]
    if doubled:
        raise BrokenError(f"{len(doubled)} of {len(graphs)} graphs come more than once {where}: {doubled[:6]}")
    lost = sorted({int(graph.y) for graph in graphs} - {*found})
    if len(lost) > max(int(getattr(loader, name, 0)) for name in ("num_skipped", "num_dropped")):
        raise BrokenError(f"{len(lost)} of {len(graphs)} graphs are missing {where}, and not counted: {lost[:6]}")
