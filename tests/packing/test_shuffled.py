"""Random numbers and random orders against plain references in whole numbers."""

import random

import numpy as np
import pytest
import torch

from popgeo.packing.shuffled import shuffled, uniform_stream
from popgeo.random_numbers import new_key, uniform

WORD = (1 << 64) - 1


def split_mix(key: int, i: int) -> int:
    """Return the upper half of number i of the published SplitMix64 stream."""
    z = (key + (i + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return (z ^ (z >> 31)) >> 32


def test_numbers_are_those_of_the_published_generator():
    # The first outputs for seed 1234567, as many implementations print them.
    assert uniform(1234567, 0, 2).tolist() == [6457827717110365317 >> 32, 3203168211198807973 >> 32]
    for key in (0, 7, 2**63 - 2):
        assert uniform(key, 3, 5).tolist() == [split_mix(key, i) for i in range(3, 8)]
    assert uniform(5, 2, 0).tolist() == []


def test_a_stream_gives_the_same_numbers_one_by_one():
    stream = uniform_stream(11)
    assert [next(stream) for _ in range(20_000)] == uniform(11, 0, 20_000).tolist()


def test_a_key_is_any_number_of_63_bits():
    keys = [new_key(torch.Generator().manual_seed(seed)) for seed in range(64)]
    assert all(0 <= key < 2**63 for key in keys)
    assert sum(key >= 2**62 for key in keys) > 16
    assert len(set(keys)) == 64
    drawn = torch.randint(torch.iinfo(torch.int64).max, (1,), generator=torch.Generator().manual_seed(3))
    assert keys[3] == int(drawn)


@pytest.mark.parametrize(
    ("num_graphs", "first", "then", "lengths"),
    [(10, 3, 4, [3, 4, 3]), (10, 20, 4, [10]), (8, 4, 2, [4, 2, 2]), (1, 1, 1, [1]), (0, 3, 4, [0]), (40, 40, 1, [40])],
)
def test_an_order_is_that_of_fisher_and_yates_in_pieces(num_graphs, first, then, lengths, native):
    for key in range(12):
        order = list(range(num_graphs))
        for i in range(num_graphs):
            other = i + (split_mix(key, i) * (num_graphs - i) >> 32)
            order[i], order[other] = order[other], order[i]
        pieces = list(shuffled(num_graphs, key, first, then))
        assert [len(piece) for piece in pieces] == lengths
        assert [graph for piece in pieces for graph in piece.tolist()] == order
        assert all(piece.dtype == np.int64 for piece in pieces)


def test_orders_of_many_pieces_are_the_same_whatever_the_pieces(native):
    draw = random.Random(0)
    whole = next(shuffled(500, 9, 500, 1)).tolist()
    for _ in range(10):
        pieces = shuffled(500, 9, draw.randint(1, 300), draw.randint(1, 300))
        assert [graph for piece in pieces for graph in piece.tolist()] == whole
