"""A correct loader and sampler of twenty lines each, and wrong versions: minimal forms of published defects.

`WRONG` has the constructor of each wrong version, the claim that must find it, and the origin of the defect.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, get_worker_info
from torch_geometric.data import Data

NODES, EDGES, GRAPHS = 41, 90, 5


class Batches:
    """Batches of four graphs in a new order each epoch, distributed over ranks in equal numbers."""

    def __init__(self, graphs: Sequence[Data], seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        self.number, self.seed, self.rank, self.world_size = len(graphs), seed, rank, world_size
        self.epoch = self.start = 0
        self.running, self.position = 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.start = epoch, 0

    def order(self) -> list[int]:
        return torch.randperm(
            self.number, generator=torch.Generator().manual_seed(99 * self.seed + self.epoch)
        ).tolist()

    def dealt(self) -> list[list[int]]:
        order = self.order()
        batches = [order[i : i + 4] for i in range(0, len(order), 4)]
        batches += [[]] * (-len(batches) % self.world_size)
        return batches[self.rank :: self.world_size]

    def __len__(self) -> int:
        return len(self.dealt())

    def __iter__(self) -> Iterator[list[int]]:
        batches, self.position, self.running = self.dealt(), self.start, self.epoch
        self.start, self.epoch = 0, self.epoch + 1
        while self.position < len(batches):
            self.position += 1
            yield batches[self.position - 1]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.running, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.start = state["epoch"], state["position"]


def collate(
    graphs: Sequence[Data], nodes: int = NODES, edges: int = EDGES, num_graphs: int = GRAPHS
) -> dict[str, Tensor]:
    """Join graphs in a fixed shape; padding edges join the last padding node, in the last padding graph."""
    sizes = [0, *np.cumsum([graph.num_nodes for graph in graphs], dtype=int).tolist()]
    used = sum(graph.num_edges for graph in graphs)
    if sizes[-1] >= nodes or used > edges or len(graphs) >= GRAPHS:
        raise ValueError(f"{sizes[-1]} nodes and {used} edges do not fit into the batch")
    made = {
        "x": torch.zeros(nodes, 2),
        "edge_index": torch.full((2, edges), nodes - 1),
        "edge_attr": torch.zeros(edges, 3),
        "y": torch.zeros(GRAPHS, 1),
        "batch": torch.full((nodes,), GRAPHS - 1),
    }
    at = 0
    for number, (graph, first) in enumerate(zip(graphs, sizes, strict=False)):
        made["x"][first : first + graph.num_nodes] = graph.x
        made["batch"][first : first + graph.num_nodes] = number
        made["edge_index"][:, at : at + graph.num_edges] = graph.edge_index + first
        made["edge_attr"][at : at + graph.num_edges] = graph.edge_attr
        made["y"][number] = graph.y
        at += graph.num_edges
    masks = {"nodes_mask": (nodes, sizes[-1]), "edges_mask": (edges, used), "graphs_mask": (GRAPHS, len(graphs))}
    return made | {name: torch.arange(slots) < real for name, (slots, real) in masks.items()}


class Loader(DataLoader):
    """A loader with the epoch's state of its sampler."""

    def state_dict(self) -> dict[str, int]:
        return self.batch_sampler.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.batch_sampler.load_state_dict(state)


def make(
    graphs: Any,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    *,
    batches: Callable[..., Any] = Batches,
    collate_fn: Callable[..., Any] = collate,
    **kwargs: Any,
) -> Loader:
    """Return the correct loader, or a loader with a wrong part."""
    sampler = batches(graphs, seed, rank, world_size)
    return Loader(graphs, batch_sampler=sampler, collate_fn=collate_fn, num_workers=num_workers, **kwargs)


# Wrong samplers


class DropsTheLast(Batches):
    def dealt(self) -> list[list[int]]:
        return [batch for batch in super().dealt() if len(batch) == 4]


class EvensOutByRepeats(Batches):
    def dealt(self) -> list[list[int]]:
        order = self.order()
        order += order[: -len(order) % self.world_size]
        mine = order[self.rank :: self.world_size]
        return [mine[i : i + 4] for i in range(0, len(mine), 4)]


class EvensOutByDropping(Batches):
    def dealt(self) -> list[list[int]]:
        order = self.order()
        mine = order[self.rank : len(order) - len(order) % self.world_size : self.world_size]
        return [mine[i : i + 4] for i in range(0, len(mine), 4)]


class OrderOfItsRank(Batches):
    def order(self) -> list[int]:
        generator = torch.Generator().manual_seed(99 * self.seed + self.epoch + 7 * self.rank)
        return torch.randperm(self.number, generator=generator).tolist()


class EveryRankAll(Batches):
    def dealt(self) -> list[list[int]]:
        self.rank, self.world_size = 0, 1
        return super().dealt()


class UnequalRanks(Batches):
    def dealt(self) -> list[list[int]]:
        order = self.order()
        return [order[i : i + 4] for i in range(0, len(order), 4)][self.rank :: self.world_size]


class SameOrder(Batches):
    def set_epoch(self, epoch: int) -> None:
        pass

    def order(self) -> list[int]:
        return torch.randperm(self.number, generator=torch.Generator().manual_seed(self.seed)).tolist()


class GlobalOrder(Batches):
    def order(self) -> list[int]:
        return torch.randperm(self.number).tolist()


class SeedUnused(Batches):
    def order(self) -> list[int]:
        return torch.randperm(self.number, generator=torch.Generator().manual_seed(self.epoch)).tolist()


class OneGenerator(Batches):
    def order(self) -> list[int]:
        self.generator = getattr(self, "generator", torch.Generator().manual_seed(self.seed))
        return torch.randperm(self.number, generator=self.generator).tolist()


class ForgetsItsPlace(Batches):
    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.running, "position": 0}


class DrawsAhead(Batches):
    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.running, "position": self.position + 2}


class ForgetsItsEpoch(Batches):
    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["position"]


class GoesOnAfterABreak(Batches):
    def __iter__(self) -> Iterator[list[int]]:
        batches, self.running = self.dealt(), self.epoch
        while self.position < len(batches):
            self.position += 1
            yield batches[self.position - 1]
        self.position, self.epoch = 0, self.epoch + 1


class CountsGraphs(Batches):
    def __len__(self) -> int:
        return self.number


class Stream(IterableDataset):
    """A stream of graphs, the same in every worker."""

    def __init__(self, graphs: Sequence[Data]) -> None:
        self.graphs = graphs

    def __iter__(self) -> Iterator[Data]:
        return iter(self.graphs)


class SharedStream(Stream):
    """A stream of graphs, with different graphs in each worker."""

    def __iter__(self) -> Iterator[Data]:
        worker = get_worker_info()
        graphs = [self.graphs[i] for i in range(len(self.graphs))]
        return iter(graphs if worker is None else graphs[worker.id :: worker.num_workers])


def stream(graphs: Any, num_workers: int = 0, kind: type[Stream] = Stream) -> DataLoader:
    return DataLoader(kind(graphs), batch_size=4, collate_fn=collate, num_workers=num_workers)


def same_seed(number: int) -> None:
    np.random.seed(0)  # noqa: NPY002  # tests the old generator


# Wrong batches


def changed(change: Callable[[dict[str, Tensor]], Any]) -> Callable[[Sequence[Data]], dict[str, Tensor]]:
    """Return a collate function that changes its batch afterwards."""

    def made(graphs: Sequence[Data]) -> dict[str, Tensor]:
        batch = collate(graphs)
        return change(batch) or batch

    return made


def _not_moved(graphs: Sequence[Data]) -> dict[str, Tensor]:
    batch = collate(graphs)
    parts = [graph.edge_index for graph in graphs]
    return batch | {"edge_index": torch.cat([*parts, batch["edge_index"][:, sum(p.shape[1] for p in parts) :]], 1)}


def _padding_edges_at_0(batch: dict[str, Tensor]) -> None:
    batch["edge_index"][:, ~batch["edges_mask"]] = 0


def _sorted(batch: dict[str, Tensor]) -> None:
    batch["edge_index"] = batch["edge_index"][:, batch["edge_index"][1].argsort(stable=True)]


def _reversed(batch: dict[str, Tensor]) -> None:
    batch["edge_index"] = batch["edge_index"].flip(0)


def _without_loops(batch: dict[str, Tensor]) -> None:
    ends = batch["edge_index"]
    stays = (ends[0] != ends[1]).nonzero().flatten()
    batch["edge_index"] = torch.cat([ends[:, stays], ends.new_full((2, ends.shape[1] - len(stays)), NODES - 1)], 1)


def _mask_of_one_more(batch: dict[str, Tensor]) -> None:
    batch["graphs_mask"] |= torch.arange(GRAPHS) <= batch["graphs_mask"].sum()


def _mask_by_features(batch: dict[str, Tensor]) -> None:
    batch["nodes_mask"] = batch["x"][:, 0] % 8 != 0


def _edges_mask_by_ends(batch: dict[str, Tensor]) -> None:
    batch["edges_mask"] &= batch["edge_index"][0] != batch["edge_index"][1]


def _batch_from_1(batch: dict[str, Tensor]) -> None:
    batch["batch"] = (batch["batch"] + 1).clamp(max=GRAPHS - 1)


def _batch_is_even(batch: dict[str, Tensor]) -> None:
    batch["batch"] = torch.arange(NODES) * GRAPHS // NODES


def _kept_mask(batch: dict[str, Tensor]) -> None:
    _MASKS.append(batch["nodes_mask"])
    batch["nodes_mask"] = _MASKS[-2] if len(_MASKS) > 1 else _MASKS[0]


_MASKS: list[Tensor] = []


def _cut(nodes: int, edges: int) -> Callable[[Sequence[Data]], dict[str, Tensor]]:
    def made(graphs: Sequence[Data]) -> dict[str, Tensor]:
        batch = collate(graphs, 10**4, 10**5)
        keeps = batch["edges_mask"] & (batch["edge_index"] < nodes - 1).all(0)
        ends = torch.where(keeps, batch["edge_index"], nodes - 1)[:, :edges]
        attr = torch.where(keeps[:, None], batch["edge_attr"], 0)[:edges]
        masks = {
            "nodes_mask": batch["nodes_mask"][:nodes] & (torch.arange(nodes) < nodes - 1),
            "edges_mask": keeps[:edges],
        }
        x = torch.where(masks["nodes_mask"][:, None], batch["x"][:nodes], 0)
        return batch | masks | {"x": x, "batch": batch["batch"][:nodes], "edge_index": ends, "edge_attr": attr}

    return made


def _without_large(graphs: Sequence[Data]) -> dict[str, Tensor]:
    return collate([graph for graph in graphs if graph.num_nodes < NODES // 4])


def _in_place(graphs: Sequence[Data]) -> dict[str, Tensor]:
    batch, first = collate(graphs), 0
    for graph in graphs:
        graph.edge_index += first
        first += graph.num_nodes
    return batch


_BUFFERS = collate([])


def _shared(graphs: Sequence[Data]) -> dict[str, Tensor]:
    for name, tensor in collate(graphs).items():
        _BUFFERS[name].copy_(tensor)
    return _BUFFERS


def _own_size(graphs: Sequence[Data]) -> dict[str, Tensor]:
    return collate(graphs, nodes=1 + sum(graph.num_nodes for graph in graphs))


Wrong = tuple[Callable[..., Any], str, str]
WRONG: dict[str, Wrong] = {
    "drops the last": (partial(make, batches=DropsTheLast), "each graph once", "torch's drop_last=True in evaluation"),
    "goes on after a break": (partial(make, batches=GoesOnAfterABreak), "each graph once", "state kept in the sampler"),
    "evens out by repeats": (partial(make, batches=EvensOutByRepeats), "once over ranks", "torch's DistributedSampler"),
    "evens out by dropping": (
        partial(make, batches=EvensOutByDropping),
        "once over ranks",
        "torch's DistributedSampler, drop_last=True",
    ),
    "order of its rank": (partial(make, batches=OrderOfItsRank), "once over ranks", "seed_everything(seed + rank)"),
    "every rank all": (
        partial(make, batches=EveryRankAll),
        "once over ranks",
        "a sampler of one's own in Lightning",
    ),
    "unequal ranks": (
        partial(make, batches=UnequalRanks),
        "equal ranks",
        "uneven inputs under torch's DDP",
    ),
    "workers walk all": (stream, "once from workers", "torch's IterableDataset, as its documentation warns"),
    "workers of one seed": (
        partial(make, worker_init_fn=same_seed),
        "new random numbers",
        "numpy in workers, torch issue 5059",
    ),
    "same order": (partial(make, batches=SameOrder), "order changes", "DistributedSampler without set_epoch"),
    "global order": (partial(make, batches=GlobalOrder), "order by seed", "torch's RandomSampler without a generator"),
    "seed unused": (partial(make, batches=SeedUnused), "order by seed", "a seed that is not handed on"),
    "one generator": (
        partial(make, batches=OneGenerator),
        "order by seed",
        "RandomSampler's generator, restarted",
    ),
    "forgets its place": (partial(make, batches=ForgetsItsPlace), "resumes", "Lightning before fault tolerance"),
    "draws ahead": (partial(make, batches=DrawsAhead), "resumes", "a state taken of batches that were prefetched"),
    "forgets its epoch": (partial(make, batches=ForgetsItsEpoch), "resumes", "resuming with the order of epoch 0"),
    "counts graphs": (
        partial(make, batches=CountsGraphs),
        "one shape",
        "len before packing",
    ),
    "not moved": (partial(make, collate_fn=_not_moved), "edges stay in their graph", "__inc__ forgotten in PyG's Data"),
    "padding edges at 0": (
        partial(make, collate_fn=changed(_padding_edges_at_0)),
        "edges stay in their graph",
        "torch_geometric.transforms.Pad with edge_pad_value 0",
    ),
    "sorted": (partial(make, collate_fn=changed(_sorted)), "edge features by id", "PyG issue 9566"),
    "without loops": (
        partial(make, collate_fn=changed(_without_loops)),
        "edge features by id",
        "remove_self_loops(edge_index) without edge_attr",
    ),
    "mask of one more": (partial(make, collate_fn=changed(_mask_of_one_more)), "masks tell the truth", "an off-by-one"),
    "mask by features": (
        partial(make, collate_fn=changed(_mask_by_features)),
        "masks tell the truth",
        "mask = z != 0, as of dummy atoms",
    ),
    "mask of the batch before": (
        partial(make, collate_fn=changed(_kept_mask)),
        "masks tell the truth",
        "a mask in a buffer that is filled later",
    ),
    "batch from 1": (partial(make, collate_fn=changed(_batch_from_1)), "nodes know their graph", "an off-by-one"),
    "cuts nodes": (partial(make, collate_fn=_cut(24, EDGES)), "graphs come whole", "tokenizers' truncation=True"),
    "cuts edges": (
        partial(make, collate_fn=_cut(NODES, 40)),
        "graphs come whole",
        "a budget of edges that is too small",
    ),
    "without large": (
        partial(make, collate_fn=_without_large),
        "too large is loud",
        "DynamicBatchSampler(skip_too_big=True) of PyG",
    ),
    "in place": (partial(make, collate_fn=_in_place), "nothing is written over", "a transform that takes no copy"),
    "shared": (partial(make, collate_fn=_shared), "nothing is written over", "pinned buffers that are reused"),
    "own size": (partial(make, collate_fn=_own_size), "one shape", "padding to the longest of the batch"),
}
HELD_OUT: dict[str, Wrong] = {
    "reversed": (partial(make, collate_fn=changed(_reversed)), "edge features by id", "edge_index of (target, source)"),
    "edges mask by ends": (
        partial(make, collate_fn=changed(_edges_mask_by_ends)),
        "masks tell the truth",
        "loops taken for padding",
    ),
    "batch is even": (partial(make, collate_fn=changed(_batch_is_even)), "nodes know their graph", "repeat_interleave"),
    "cuts both": (partial(make, collate_fn=_cut(26, 50)), "graphs come whole", "both limits"),
}


def of_pyg(graphs: Any, seed: int = 0, num_workers: int = 0) -> Any:
    from torch_geometric.loader import DataLoader as PyGDataLoader

    generator = torch.Generator().manual_seed(seed)
    return PyGDataLoader(graphs, batch_size=4, shuffle=True, num_workers=num_workers, generator=generator)


def of_torch(graphs: Any, num_workers: int = 0) -> DataLoader:
    return DataLoader(graphs, batch_size=4, collate_fn=collate, num_workers=num_workers)


RIGHT: dict[str, Callable[..., Any]] = {
    "plain": make,
    "PyG's": of_pyg,
    "torch's": of_torch,
    "a stream": partial(stream, kind=SharedStream),
}
RIGHT_SAMPLERS: dict[str, Callable[..., Any]] = {
    "plain": Batches,
    "torch's": lambda graphs: BatchSampler(RandomSampler(graphs), 4, drop_last=False),
}

sorts_edges = WRONG["sorted"][0]  # found by name, as on the command line
