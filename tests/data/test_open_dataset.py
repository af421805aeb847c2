"""Sizes that a process has read go to others without its progress bar."""

import pickle

from popgeo.data.open_dataset import GraphSizes
from tests.support.graphs import graph


def test_sizes_in_another_process_show_no_bar_and_are_known():
    sizes = GraphSizes([graph(3, 4), graph(2, 1)], progress_bar=True)
    assert sizes.values.tolist() == [[3, 4], [2, 1]]
    copied = pickle.loads(pickle.dumps(sizes))
    assert copied._progress_bar is False
    assert sizes._progress_bar is True
    assert copied.are_known
    assert copied.values.tolist() == [[3, 4], [2, 1]]


def test_a_list_is_measured_in_pieces_of_256_graphs():
    graphs = [graph(1 + i % 3, i % 2) for i in range(257)]
    values = GraphSizes(graphs, progress_bar=False).values
    assert values.tolist() == [[1 + i % 3, i % 2] for i in range(257)]
