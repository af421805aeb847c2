"""Graph attributes with rows of their own: how many rows a batch keeps, and what is said of waste."""

import pytest
import torch
from torch.utils.data import Subset
from torch_geometric.data import Data

from popgeo import FixedSizeDataLoader, FixedSizeOptions


def molecule(n: int, rows: int, name: str = "ring_index") -> Data:
    values = torch.zeros(2, rows, dtype=torch.long) if name == "ring_index" else torch.zeros(rows, 3)
    return Data(x=torch.ones(n, 1), edge_index=torch.tensor([[0], [1]]), **{name: values})


def molecules(odd: int, name: str = "ring_index") -> list[Data]:
    return [molecule(4 + i % 5, 12 + i % 5, name) for i in range(200)] + [molecule(30, odd, name)]


@pytest.mark.parametrize("name", ["ring_index", "corners"])
@pytest.mark.parametrize("odd", [900, 20_000])
def test_tune_keeps_the_rows_that_the_largest_graphs_need_together(name, odd):
    graphs = molecules(odd, name)
    sizes = FixedSizeOptions.tune(graphs, 10, verbose=False)
    assert odd + 1 < sizes.num_rows[name] <= odd + 16 * sizes.num_graphs
    loader = FixedSizeDataLoader(graphs, fixed_size_options=sizes, fixed_size_strategy="Window", shuffle=True)
    for _ in range(2):
        assert {batch[name].size(-1 if name == "ring_index" else 0) for batch in loader} == {sizes.num_rows[name]}
    assert FixedSizeOptions.tune(graphs, 10, verbose=False, num_rows={name: 77}).num_rows == {name: 77}


def test_rows_that_are_padding_but_for_a_tenth_are_warned_of():
    with pytest.warns(
        UserWarning, match=r"keeps 180,001 rows for 'ring_index', as graph 200 has 20,000.*num_rows={'ri"
    ):
        FixedSizeDataLoader(molecules(20_000), 10)
    FixedSizeDataLoader(molecules(30), 10)
    FixedSizeDataLoader(Subset(molecules(20_000), range(200)), 10)
    FixedSizeDataLoader(
        molecules(20_000), fixed_size_options=FixedSizeOptions(99, 20, 10, num_rows={"ring_index": 999})
    )


@pytest.mark.parametrize("rows", [(1, 2), (2, 1), (5, 5, 1)])
@pytest.mark.parametrize("name", ["y", "target", "energy"])
def test_labels_with_different_numbers_of_rows_are_refused_unless_they_are_meant(name, rows):
    graphs = [Data(x=torch.ones(4, 1), edge_index=torch.zeros(2, 3).long(), **{name: torch.ones(k)}) for k in rows]
    odd = next(i for i, k in enumerate(rows) if k != rows[0])
    with pytest.raises(ValueError, match=f"Graph {odd} has {rows[odd]} rows in '{name}' and graph 0 has {rows[0]}"):
        FixedSizeDataLoader(graphs, len(rows) + 1)
    sizes = FixedSizeOptions(20, 20, len(rows) + 1, num_rows={name: 12})
    assert next(iter(FixedSizeDataLoader(graphs, fixed_size_options=sizes)))[name].shape == (12,)
