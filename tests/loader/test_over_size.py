"""Graphs that do not fit."""

import pytest
import torch
from torch_geometric.data import Data

from popgeo.data import FixedSizeOptions, OverSizeStrategy, unpad
from popgeo.loader import FixedSizeDataLoader, FixedSizeStrategy
from tests.support.graphs import assert_same_graphs, graph, hetero_graph, same
from tests.support.loaders import GRAPHS, loader_of, seeds


def test_skipping_leaves_out_what_cannot_fit_and_counts_it():
    graphs = [*GRAPHS[:5], graph(30, 0, 99), *GRAPHS[5:]]
    with pytest.raises(
        ValueError, match=r"Graph 5 has 30 nodes, a batch holds 24 real ones: 6 too many. 1 graphs do not"
    ):
        len(loader_of(graphs))
    loader = loader_of(graphs, over_size_strategy=OverSizeStrategy.Skip)
    assert seeds(loader) == list(range(40))
    assert loader.num_skipped == 1


def test_skipping_works_for_pad_to_max_too():
    settings = {"strategy": FixedSizeStrategy.PadToMax, "fixed_size_options": FixedSizeOptions(15, 40, 6)}
    with pytest.warns(UserWarning, match="room for 14"):
        refused = loader_of(**settings)
    with pytest.raises(ValueError, match=r"Batch has 20 nodes, FixedSizeOptions.num_nodes is 15 with one kept"):
        len(refused)
    loader = loader_of(**settings, over_size_strategy="Skip")
    num_skipped = loader.num_skipped
    kept = seeds(loader)
    assert kept[:5] == [0, 1, 2, 3, 5]  # 2, 3, 4 and 5 nodes fill a batch; the 6 of graph 4 are too many
    assert len(set(kept)) == len(kept) == 40 - num_skipped


def test_trimming_is_repeatable_and_says_what_each_graph_lost():
    graphs = [*GRAPHS[:5], graph(30, 60, 99), *GRAPHS[5:]]
    graphs = [Data(**{k: v for k, v in g.to_dict().items() if k != "root_index"}) for g in graphs]
    settings = {"over_size_strategy": OverSizeStrategy.TrimNodesAndEdges, "shuffle": True, "sort_edges": True}
    batches = list(loader_of(graphs, **settings))
    again = list(loader_of(graphs, **settings, num_workers=1))
    assert all(same(own.x, other.x) for own, other in zip(batches, again, strict=True))
    assert sorted(seeds(batches)) == [*range(40), 99]
    lost = torch.cat([batch.num_trimmed_nodes[batch.graphs_mask] for batch in batches])
    assert lost.sum() == 6
    assert {batch.num_trimmed_edges.shape for batch in batches} == {(6,)}


def test_heterogeneous_budgets_hold_for_each_type():
    graphs = [hetero_graph(1 + i % 3, 1 + i % 4, i % 5, i % 3, seed=i) for i in range(20)]
    options = FixedSizeOptions({"a": 6, "b": 9}, 12, 5)
    batches = list(loader_of(graphs, fixed_size_options=options))
    assert {tuple(batch["a"].x.shape) for batch in batches} == {(6, 2)}
    assert {batch["b"].nodes_mask.shape for batch in batches} == {(9,)}
    assert_same_graphs([g for batch in batches for g in unpad(batch)], graphs)
    assert options.num_edges == 12  # the user's own options stay as they were


def test_a_loader_that_cannot_load_still_says_what_it_is():
    with pytest.warns(UserWarning, match="2 graphs have"):
        loader = FixedSizeDataLoader(GRAPHS, num_nodes=2, num_edges=0, batch_size=3)
    assert repr(loader).startswith("FixedSizeDataLoader(40 graphs; no batches: Graph ")


def test_sizes_for_full_batches_in_batches_of_equal_number_are_told_the_strategy_that_fills_them():
    sizes = FixedSizeOptions.tune(GRAPHS, target_graphs=5)
    with pytest.warns(UserWarning, match="graphs have .* in the mean.* have room for .*fixed_size_strategy='Window'"):
        loader = loader_of(fixed_size_options=sizes, strategy=FixedSizeStrategy.PadToMax)
    with pytest.raises(ValueError, match=r"too many.* Sizes that tune\(\) chose need fixed_size_strategy='Window'"):
        len(loader)
    assert len(loader_of(fixed_size_options=sizes, strategy=FixedSizeStrategy.Window)) > 0
