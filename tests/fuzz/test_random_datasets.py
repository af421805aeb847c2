"""Random datasets, batched in every way: the real rows equal the rows of `Batch.from_data_list`.

For a longer run, set POPGEO_FUZZ_EXAMPLES=5000.
"""

import os
import pickle

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data, InMemoryDataset

from popgeo import FixedSizeDataLoader, FixedSizeOptions
from popgeo.data import FixedSizeCollater, FlatStore, write

EXAMPLES = int(os.environ.get("POPGEO_FUZZ_EXAMPLES", "60"))
DTYPES = [torch.float32, torch.float16, torch.int64, torch.int32, torch.bool, torch.float64]
# popgeo shifts no numbers here, regardless of the name; PyG shifts every attribute with "index" in its name.
NAMES = [
    "charge",
    "minibatch",
    "batch_no",
    "run_index",
    "edge_kind",
    "node_kind",
    "label",
    "z",
    "pos",
    "edge_attr",
    "y",
]
LEVELS = ["node", "edge", "graph"]


class Lazy(torch.utils.data.Dataset):
    def __init__(self, graphs: list[Data]) -> None:
        self.graphs = graphs

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, i: int) -> Data:
        return self.graphs[i]


class StashedValue(InMemoryDataset):
    def __init__(self, graphs: list[Data]) -> None:
        super().__init__()
        self.data, self.slices = self.collate(graphs)


@st.composite
def datasets(draw):
    """Draw graphs and the level of each attribute; counts often coincide, and some graphs are empty."""
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    sizes = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=6))
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    # PyG joins attributes named index along the last dimension, so a wider attribute would have different rows.
    chosen = {
        name: (_level(name, draw), draw(st.sampled_from(DTYPES)), draw(st.integers(0, 0 if "index" in name else 2)))
        for name in names
    }
    graphs = []
    for nodes, edges in sizes:
        graph = Data(x=torch.rand(nodes, 2, generator=random))
        graph.edge_index = torch.randint(nodes, (2, edges), generator=random)
        for name, (level, dtype, width) in chosen.items():
            rows = {"node": nodes, "edge": edges, "graph": 1}[level]
            graph[name] = (torch.rand(rows, *[width] * (width > 0), generator=random) * 4).to(dtype)
        graphs.append(graph)
    return graphs, {name: level for name, (level, _, _) in chosen.items()}


def _level(name: str, draw) -> str:
    known = {"edge_kind": "edge", "edge_attr": "edge", "node_kind": "node", "z": "node", "pos": "node", "y": "graph"}
    return known.get(name) or draw(st.sampled_from(LEVELS))


def ways_in(graphs: list[Data], levels: dict[str, str], folder) -> dict:
    """Return functions that make one batch of all graphs in every way."""
    options = FixedSizeOptions(40, 40, len(graphs) + 1)
    choices = {"fixed_size_options": options, "levels": levels}
    collater = FixedSizeCollater(options, True, levels=levels)

    def first(dataset):
        return next(iter(FixedSizeDataLoader(dataset, **choices)))

    return {
        "a list": lambda: first(graphs),
        "one by one": lambda: first(Lazy(graphs)),
        "in memory": lambda: first(StashedValue(graphs)),
        "a flat store": lambda: first(FlatStore.from_dataset(graphs, levels=levels)),
        "a store on disk": lambda: first(write(graphs, folder, levels=levels)),
        "a collater": lambda: collater(graphs),
        "a pickled collater": lambda: pickle.loads(pickle.dumps(collater))(graphs),
    }


@pytest.mark.filterwarnings("ignore:.* does not hold its graphs")
@settings(max_examples=EXAMPLES, deadline=None)
@given(dataset=datasets())
def test_the_real_rows_of_a_batch_are_pygs(dataset, tmp_path_factory):
    graphs, levels = dataset
    try:
        expected = Batch.from_data_list([graph.clone() for graph in graphs])
    except RuntimeError:  # from PyG, which computes the maximum of an empty tensor
        assume(False)
    for name, make in ways_in(graphs, levels, tmp_path_factory.mktemp("fuzz") / "store").items():
        batch = make()
        counts = {"node": expected.num_nodes, "edge": expected.num_edges, "graph": len(graphs)}
        slots = {"node": 40, "edge": 40, "graph": len(graphs) + 1}
        for key, level in {"x": "node", **levels}.items():
            value = batch[key]
            assert len(value) == slots[level], (name, key)
            is_index = not value.is_floating_point() and value.dtype is not torch.bool
            theirs = expected[key] if is_index or ("batch" not in key and "index" not in key) else None
            ours = torch.cat([graph[key] for graph in graphs]) if theirs is None else theirs
            assert torch.equal(value[: counts[level]], ours.to(value.dtype)), (name, key)
        assert torch.equal(batch.edge_index[:, : counts["edge"]], expected.edge_index), name
        assert torch.equal(batch.batch[: counts["node"]], expected.batch), name
