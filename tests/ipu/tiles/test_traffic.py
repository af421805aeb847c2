"""The bytes that a report shows between tiles are those of the program's transfer lists."""

import numpy as np
import pytest
import torch

from popgeo.ipu import IpuTarget
from popgeo.ipu.cost.graph_cost import cost
from popgeo.ipu.tiles.graph_program import schedule
from popgeo.ipu.tiles.program import Exchange, Program
from tests.support.traffic import traffic
from tests.support.training_steps import captured, graph_network, schnet

SMALL = IpuTarget(name="small", num_tiles=8, memory_per_tile=2**20, clock=1e9, float32_macs=16, float16_macs=64)


def listed(program: Program) -> tuple[np.ndarray, np.ndarray]:
    """What each tile receives from each other, and what each sends, multicasts once."""
    between, sent = np.zeros((8, 8), np.int64), np.zeros(8, np.int64)
    for step in program.walk():
        if isinstance(step, Exchange):
            distinct: dict[tuple[str, int], set[int]] = {}
            for transfer in step.transfers:
                width = program.variables[transfer.variable].dtype.itemsize
                between[transfer.source, transfer.destination] += width * len(transfer.elements)
                distinct.setdefault((transfer.variable, transfer.source), set()).update(transfer.elements.tolist())
            for (variable, source), elements in distinct.items():
                sent[source] += program.variables[variable].dtype.itemsize * len(elements)
    return between, sent


@pytest.mark.parametrize("name", ["schnet", "gin"])
def test_traffic_is_the_sum_of_the_transfers(name):
    torch.manual_seed(0)
    graph, _ = captured(*(schnet(num_nodes=24, channels=8, blocks=1) if name == "schnet" else graph_network(name)))
    costs = cost(graph, SMALL)
    between, sent = listed(schedule(graph, costs, SMALL))
    found = traffic(graph, costs, SMALL)
    assert between.sum() > 0
    np.testing.assert_array_equal(found.between, between)
    np.testing.assert_array_equal(found.bytes_in.sum(0), between.sum(0))
    np.testing.assert_array_equal(found.bytes_out.sum(0), sent)
    assert found.bytes_in.shape == found.bytes_out.shape == (len(graph.ops), 8)
