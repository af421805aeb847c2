"""What aggregations do differently where nothing may be read from data."""

from typing import Any

from popgeo.compat.poptorch_geometric.ops.to_dense_batch import to_dense_batch as _to_dense_batch


def assert_sorted_index(aggregation: Any, index: Any) -> None:
    """Looks at nothing: indices are sorted once, before a batch is captured."""


class Aggregation:
    """The functions under the name of the class that they belong to."""

    assert_sorted_index = staticmethod(assert_sorted_index)
    to_dense_batch = staticmethod(_to_dense_batch)
