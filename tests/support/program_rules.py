"""What every program of the machine must hold, checked step by step."""

from collections import Counter

import numpy as np

from popgeo.ipu.tiles.program import ComputeSet, Exchange, HostCopy, Program


def assert_each_element_is_on_one_tile(program: Program) -> None:
    for variable in program.variables.values():
        mapping = variable.mapping
        assert mapping.starts[0] == 0 or not mapping.numel, variable.name
        assert (np.diff(mapping.starts) > 0).all(), variable.name
        assert 0 <= mapping.tiles.min() <= mapping.tiles.max() < program.num_tiles, variable.name
        assert mapping.replicated or mapping.elements_per_tile(program.num_tiles).sum() == mapping.numel, variable.name
        assert not mapping.replicated or variable.name.startswith("numbers"), variable.name


def assert_vertices_touch_only_their_tile(program: Program) -> None:
    """A vertex reads what its tile holds or the exchange just before it brought, and writes what its tile holds."""
    holders = {name: v.mapping.holders() for name, v in program.variables.items()}
    for name, variable in program.variables.items():
        if variable.mapping.replicated:
            holders[name] = None
    sent: dict[tuple[str, int], list[np.ndarray]] = {}
    for step in program.walk():
        if isinstance(step, Exchange):
            for transfer in step.transfers:
                assert (holders[transfer.variable][transfer.elements] == transfer.source).all()
                assert transfer.destination != transfer.source
                sent.setdefault((transfer.variable, transfer.destination), []).append(transfer.elements)
        elif isinstance(step, ComputeSet):
            for vertex in step.vertices:
                for region in vertex.reads:
                    if holders[region.variable] is None:
                        continue
                    elements = np.unique(region.elements)
                    absent = elements[holders[region.variable][elements] != vertex.tile]
                    brought = np.concatenate([np.array([], np.int64), *sent.get((region.variable, vertex.tile), [])])
                    assert np.isin(absent, brought).all(), (step.name, region.variable)
                for region in vertex.writes:
                    if region is not None:
                        assert (holders[region.variable][region.elements] == vertex.tile).all(), step.name
            sent = {}


def assert_nobody_reads_what_another_writes(program: Program) -> None:
    for step in program.walk():
        if not isinstance(step, ComputeSet):
            continue
        written: dict[str, Counter[int]] = {}
        for vertex in step.vertices:
            for region in vertex.writes:
                if region is not None:
                    written.setdefault(region.variable, Counter()).update(np.unique(region.elements).tolist())
        assert all(count == 1 for counts in written.values() for count in counts.values()), step.name
        for vertex in step.vertices:
            own = {r.variable: set(r.elements.ravel().tolist()) for r in vertex.writes if r is not None}
            for region in vertex.reads:
                # What comes over the exchange is a copy of the value before this compute set.
                home = program.variables[region.variable].mapping.holders()
                here = [e for e in np.unique(region.elements).tolist() if home[e] == vertex.tile]
                others = set(here) & set(written.get(region.variable, ())) - own.get(region.variable, set())
                assert not others, (step.name, region.variable)


def count_steps(program: Program) -> Counter[str]:
    return Counter(type(step).__name__ for step in program.walk() if not isinstance(step, HostCopy))
