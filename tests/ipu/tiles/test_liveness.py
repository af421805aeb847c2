"""The lifetime of a storage, from its making to its last reader, worked out by hand for five operations."""

import numpy as np
import torch

from popgeo.capture.capture import bind, capture
from popgeo.capture.op_graph import OpGraph
from popgeo.ipu.tiles.map_tensors import Lifetime, lives, storage_sizes
from popgeo.ipu.tiles.tile_mapping import TileMapping, linear


def five(x, unused):
    a = x.cos()  # operation 0
    b = a.view(3, 11)  # 1, a view of `a`
    c = a.exp()  # 2
    d = b + 1  # 3, the last reader of `a`, as `b`
    return d, c * c, d.t()  # 4, 5


def graph_of(function, *inputs) -> OpGraph:
    return capture(function, bind(function, *inputs)).graph


def lives_of(graph: OpGraph, num_tiles: int = 4) -> list[Lifetime]:
    mappings = {storage: linear(numel, num_tiles, 32) for storage, (numel, _) in storage_sizes(graph).items()}
    return list(lives(graph, mappings, num_tiles).values())


def test_five_operations_by_hand():
    found = lives_of(graph_of(five, torch.zeros(33), torch.zeros(2)))
    assert [(life.name, life.first, life.last) for life in found] == [
        ("x float32[33]", -1, 0),
        ("unused float32[2]", -1, -1),
        ("cos float32[33]", 0, 3),
        ("exp float32[33]", 2, 4),
        ("add float32[3, 11]", 3, 6),  # results are needed to the end
        ("mul float32[33]", 4, 6),
    ]
    assert found[2].source.endswith("in five: a = x.cos()  # operation 0")
    assert found[0].source == ""


def test_bytes_are_those_of_each_tile_up_to_a_multiple_of_eight():
    (x, *_) = lives_of(graph_of(five, torch.zeros(33), torch.zeros(2)))
    assert x.nbytes.tolist() == [32 * 4, 8, 0, 0]  # the 33rd element's 4 bytes take 8


def test_a_change_in_place_keeps_a_storage_alive_and_makes_none():
    def function(x):
        y = x.clone()
        z = x + 1
        y.add_(1)
        return z

    found = lives_of(graph_of(function, torch.zeros(4)))
    assert [(life.name, life.first, life.last) for life in found] == [
        ("x float32[4]", -1, 1),
        ("clone float32[4]", 0, 2),
        ("add float32[4]", 1, 3),
    ]


def test_constants_are_there_from_the_start_and_copies_of_every_tile_count_on_each():
    table = torch.zeros(3)
    graph = graph_of(lambda x: (x + 1) * table, torch.zeros(3))
    everywhere = TileMapping(starts=np.array([0]), tiles=np.array([0], np.int32), numel=3, replicated=True)
    mappings = dict.fromkeys(storage_sizes(graph), everywhere)
    constant = next(life for life in lives(graph, mappings, 2).values() if life.name.startswith("constant"))
    assert (constant.first, constant.last, constant.nbytes.tolist()) == (-1, 1, [16, 16])
