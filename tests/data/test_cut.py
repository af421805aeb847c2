"""What does not fit a batch."""

import pytest

from popgeo.data import FixedSizeCollater, FixedSizeOptions
from tests.support.graphs import graph


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (
            FixedSizeOptions(5, 9, 4),
            "Batch has 5 nodes, FixedSizeOptions.num_nodes is 5 with one kept for padding: 1 too many",
        ),
        (
            FixedSizeOptions(9, 4, 4),
            "Batch has 5 edges, FixedSizeOptions.num_edges is 4: 1 too many. Its largest graph is 0",
        ),
        (FixedSizeOptions(9, 9, 2), "Batch has 2 graphs, FixedSizeOptions.num_graphs is 2 with one kept for padding"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(options, found):
    with pytest.raises(ValueError, match=found.replace(".", r"\.") + ".*Raise"):
        FixedSizeCollater(options)([graph(3, 4), graph(2, 1)])
