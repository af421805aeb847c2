"""Small graphs in place of large graphs, and a check of every batch of their loaders."""

import torch
from torch_geometric.data import Data, HeteroData


def random_graph(num_nodes: int = 60, num_edges: int = 240, seed: int = 0) -> Data:
    """Return an undirected random graph with different features for each node and each edge."""
    generator = torch.Generator().manual_seed(seed)
    half = torch.randint(num_nodes, (2, num_edges // 2), generator=generator)
    edge_index = torch.cat([half, half.flip(0)], dim=1)
    return Data(
        x=torch.arange(num_nodes * 3.0).view(-1, 3),
        edge_index=edge_index,
        edge_attr=torch.arange(edge_index.shape[1])[:, None] / 2,
        y=torch.arange(num_nodes) % 4,
    )


def library(num_papers: int = 30, num_authors: int = 20, seed: int = 0) -> HeteroData:
    """Return a graph of papers and authors, with writing and citing edges."""
    generator = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["paper"].x, data["author"].x = (
        torch.arange(float(num_papers))[:, None],
        -torch.arange(num_authors * 1.0)[:, None],
    )
    sizes = {"paper": num_papers, "author": num_authors}
    for key, count in (
        (("author", "writes", "paper"), 80),
        (("paper", "rev_writes", "author"), 80),
        (("paper", "cites", "paper"), 90),
    ):
        rows = [torch.randint(sizes[end], (count,), generator=generator) for end in (key[0], key[2])]
        data[key].edge_index = torch.stack(rows)
    return data


def check_is_part_of(batch: Data, data: Data) -> None:
    """Check that real rows and edges belong to the whole graph, and that padding edges join padding nodes."""
    nodes, edges = batch.nodes_mask, batch.edges_mask
    ends, numbered = batch.n_id[batch.edge_index[:, edges]], data.edge_index[:, batch.e_id[edges]]
    # A reversed edge has the number of its original edge.
    assert ((ends == numbered).all(0) | (ends.flip(0) == numbered).all(0)).all()
    assert torch.equal(batch.x[nodes], data.x[batch.n_id[nodes]])
    assert torch.equal(batch.edge_attr[edges], data.edge_attr[batch.e_id[edges]])
    assert torch.equal(nodes, nodes.sort(descending=True).values)
    assert not nodes[batch.edge_index[:, ~edges]].any()
    assert not batch.seeds_mask[~nodes].any()
    assert int(batch.nodes_mask.sum()) < batch.num_nodes
