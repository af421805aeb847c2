"""Small datasets and loaders for tests."""

from torch_geometric.data import Dataset as PyGDataset
from torch_geometric.data import InMemoryDataset

from popgeo.data import FixedSizeOptions, unpad
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from tests.support.graphs import graph

GRAPHS = [graph(2 + seed % 5, 3 * (seed % 4), seed) for seed in range(40)]
OPTIONS = FixedSizeOptions(num_nodes=25, num_edges=40, num_graphs=6)


class InMemory(InMemoryDataset):
    """A dataset in memory, like PyG's own datasets."""

    def __init__(self, graphs, transform=None):
        super().__init__(None, transform)
        self.data, self.slices = self.collate(graphs)


class OnDisk(PyGDataset):
    """A dataset that makes each graph on request."""

    def len(self):
        return len(GRAPHS)

    def get(self, idx):
        return GRAPHS[idx]


def loader_of(dataset=GRAPHS, strategy=FixedSizeStrategy.StreamPack, **kwargs) -> FixedSizeDataLoader:
    kwargs = {"fixed_size_options": OPTIONS, "seed": 0, **kwargs}
    return FixedSizeDataLoader(dataset, fixed_size_strategy=strategy, **kwargs)


def seeds(batches) -> list[int]:
    """Return the numbers of the batches' graphs, in order: each graph's `charge` is its number."""
    return [int(g.charge) for batch in batches for g in unpad(batch)]
