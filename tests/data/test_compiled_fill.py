"""The compiled library fills what the definition in plain torch fills."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from popgeo.data import FixedSizeCollater, FixedSizeOptions, FlatStore
from popgeo.data.batch_layout import lay_out
from popgeo.data.compiled_fill import Filler
from popgeo.native import library
from tests.support.graphs import graph, lists_of_graphs, options_for, same


@settings(deadline=None, max_examples=25)
@given(
    graphs=lists_of_graphs(),
    edges=st.integers(0, 5),
    spread=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_the_compiled_library_and_the_fallback_agree_to_the_last_bit(graphs, edges, spread, dtype):
    if not library.is_available():
        pytest.skip(library.reason())
    collate = FixedSizeCollater(
        options_for(graphs, 3, edges, 2),
        add_masks_to_batch=True,
        follow_batch=["edge_attr", "y", "x"],
        index_dtype=dtype,
        spread_padding_edges=spread,
    )
    compiled = collate(graphs)
    with library.without_native():
        fallback = collate(graphs)
    assert list(compiled.keys()) == list(fallback.keys())
    assert all(same(compiled[name], fallback[name]) for name in compiled.keys())  # noqa: SIM118


def test_graphs_in_memory_are_filled_by_the_compiled_library():
    store = FlatStore.from_dataset([graph(3, 2), graph(2, 4)])
    assert Filler(store, lay_out(store, FixedSizeOptions(8, 8, 4))).can_be_compiled
