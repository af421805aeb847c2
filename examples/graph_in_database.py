"""Train GraphSAGE on a graph with features and edges in an embedded database: a file, not a server.

    pip install '.[stores]'
    python examples/graph_in_database.py --nodes 20000 --edges 200000

The database is LadybugDB (`ladybug`), the successor of Kuzu. Two small classes translate the requests of PyG's
`FeatureStore` and `GraphStore` to its query language. The loader does the rest: it requests each batch's rows ahead of
the step. Features are stored as bytes: the database returns bytes twice as fast as lists of numbers, and stores them
ten times as fast. The last line shows the share of an epoch spent waiting for the store.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ladybug
import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, TensorAttr
from torch_geometric.nn import GraphSAGE

from popgeo import FixedSizeNeighborLoader, training_model
from popgeo.command_line import run
from popgeo.nn import cross_entropy

CITES = ("paper", "cites", "paper")


def made_up(num_nodes: int, num_edges: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return features [num_nodes, width], classes derived from them [num_nodes], random edges [2, num_edges]."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_nodes, width, generator=generator)
    return x, x[:, :5].argmax(dim=1), torch.randint(num_nodes, (2, num_edges), generator=generator)


def put(path: Path, x: Tensor, y: Tensor, edge_index: Tensor) -> Any:
    """Write a graph into a new database; return a connection to it."""
    connection = ladybug.Connection(ladybug.Database(str(path)), num_threads=1)
    connection.execute("CREATE NODE TABLE paper(id INT64, x BLOB, y INT64, PRIMARY KEY(id))")
    connection.execute("CREATE REL TABLE cites(FROM paper TO paper)")
    starts = torch.arange(len(x) + 1) * x[0].nbytes
    rows = pa.Array.from_buffers(pa.large_binary(), len(x), [None, *map(pa.py_buffer, (starts.numpy(), x.numpy()))])
    papers = pa.table({"id": torch.arange(len(x)).numpy(), "x": rows, "y": y.numpy()})  # named in the query
    connection.execute("COPY paper FROM papers")
    del papers
    edges = pa.table({"from": edge_index[0].numpy(), "to": edge_index[1].numpy()})  # named in the query
    connection.execute("COPY cites FROM edges")
    del edges
    return connection


class DatabaseFeatures(FeatureStore):
    """The feature store of papers."""

    def __init__(self, connection: Any, width: int) -> None:
        super().__init__()
        self.connection, self.shapes = connection, {"x": (width,), "y": ()}

    def _multi_get_tensor(self, attrs: list[TensorAttr]) -> list[Tensor]:
        numbers = attrs[0].index.numpy()  # all attributes are requested for the same rows
        names = ", ".join(f"paper.{attr.attr_name} AS {attr.attr_name}" for attr in attrs)
        first, last = numbers.min(), numbers.max()
        wanted = pa.table({"number": numbers})  # named in the query
        query = f"LOAD FROM wanted MATCH (paper:paper) WHERE paper.id = number RETURN number, {names}"
        if 4 * len(wanted) > last - first:  # reading the whole range costs less than so many look-ups
            between = f"paper.id >= {first} AND paper.id <= {last}"
            query = f"MATCH (paper:paper) WHERE {between} RETURN paper.id AS number, {names}"
        found = self.connection.execute(query).get_as_arrow(1 << 20).combine_chunks()
        ids = found["number"].to_numpy()
        order = ids.argsort()
        order = order[np.searchsorted(ids, numbers, sorter=order)]
        if (ids[order] != numbers).any():
            raise LookupError(f"The database has no papers {numbers[ids[order] != numbers][:5]}.")
        return [torch.from_numpy(self._rows(found[attr.attr_name], attr.attr_name)[order]) for attr in attrs]

    def _rows(self, column: Any, name: str) -> np.ndarray:
        if pa.types.is_binary(column.type):
            return np.frombuffer(column.chunk(0).buffers()[-1], np.float32).reshape(-1, *self.shapes[name])
        return np.asarray(column.to_numpy())

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        return self._multi_get_tensor([attr])[0]

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        count = self.connection.execute("MATCH (paper:paper) RETURN count(paper)").get_next()[0]
        return (count, *self.shapes[attr.attr_name])

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return the attributes of papers."""
        return [TensorAttr(group_name="paper", attr_name=name) for name in self.shapes]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise NotImplementedError

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise NotImplementedError


class DatabaseEdges(GraphStore):
    """The graph store of citations."""

    def __init__(self, connection: Any, num_nodes: int) -> None:
        super().__init__()
        self.connection, self.num_nodes = connection, num_nodes

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor]:
        query = "MATCH (a:paper)-[:cites]->(b:paper) RETURN a.id AS source, b.id AS destination"
        found = self.connection.execute(query).get_as_arrow(1 << 20)
        return torch.tensor(found["source"].to_numpy()), torch.tensor(found["destination"].to_numpy())

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return the only type of edges."""
        return [EdgeAttr(CITES, "coo", size=(self.num_nodes, self.num_nodes))]

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise NotImplementedError

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise NotImplementedError


class Training(nn.Module):
    """GraphSAGE and its loss on the seeds of a batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network = GraphSAGE(width, 64, num_layers=2, out_channels=5)

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor, seeds_mask: Tensor) -> Tensor:
        """Return the loss on the seeds []."""
        return cross_entropy(self.network(x, edge_index), y, seeds_mask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=2_048, help="papers to train on")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    width = 32
    with tempfile.TemporaryDirectory() as folder:
        connection = put(Path(folder) / "graph", *made_up(arguments.nodes, arguments.edges, width))
        stores = DatabaseFeatures(connection, width), DatabaseEdges(connection, arguments.nodes)
        seeds = torch.arange(arguments.seeds)
        loader = FixedSizeNeighborLoader(stores, [10, 5], ("paper", seeds), batch_size=256, shuffle=True)
        print(loader)
        model = Training(width)
        step = training_model(model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))
        for epoch in range(arguments.epochs):
            losses = []
            for batch in loader:
                papers = batch["paper"]
                losses.append(float(step(papers.x, batch[CITES].edge_index, papers.y, papers.seeds_mask)))
            print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}; {loader.waiting}")


if __name__ == "__main__":
    run(main)
