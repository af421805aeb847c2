"""The rules that every program must obey, checked in all tests; the machine itself checks when it runs."""

from collections.abc import Mapping

import numpy as np

from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.steps import ComputeSet, Exchange, Variable, Vertex

_Holders = Mapping[str, np.ndarray | None]  # the tile of each element; None if every tile has a copy
_Sent = dict[tuple[str, int], list[np.ndarray]]  # elements received since the last compute set, by variable and tile


def check(program: Program) -> None:
    """Check that the program is complete: all data that a tile needs is on the tile or arrives in time.

    Each element is on exactly one tile, unless its variable is replicated. A tile sends only elements that it has. A
    vertex reads elements of its tile or elements that the last exchange brought, and writes elements of its tile. In a
    compute set, no vertex reads or writes elements that another vertex writes.

    Raises:
        ValueError: a rule is broken; the message names the step, the variable and the tile.
    """
    for variable in program.variables.values():
        _check_mapping(variable, program.num_tiles)
    holders = {n: None if v.mapping.replicated else v.mapping.holders() for n, v in program.variables.items()}
    sent: _Sent = {}
    for step in program.walk():
        if isinstance(step, Exchange):
            _check_exchange(step, holders, sent)
        elif isinstance(step, ComputeSet):
            for vertex in step.vertices:
                _check_vertex(step.name, vertex, holders, sent)
            _check_apart(step, holders)
            sent = {}


def _check_mapping(variable: Variable, num_tiles: int) -> None:
    mapping = variable.mapping
    if mapping.replicated or not mapping.numel:
        return
    ascending = mapping.starts[0] == 0 and (np.diff(mapping.starts) > 0).all() and mapping.starts[-1] < mapping.numel
    if not ascending:
        raise ValueError(
            f"The intervals of {variable.name} do not contain each element exactly once: {mapping.starts}."
        )
    if not 0 <= mapping.tiles.min() <= mapping.tiles.max() < num_tiles:
        raise ValueError(f"{variable.name} is on tile {mapping.tiles.max()}, but the program has {num_tiles} tiles.")


def _check_exchange(step: Exchange, holders: _Holders, sent: _Sent) -> None:
    for transfer in step.transfers:
        at = holders[transfer.variable]
        if at is None or (at[transfer.elements] != transfer.source).any():
            raise ValueError(
                f"{step.name}: tile {transfer.source} sends elements of {transfer.variable} that it does not have."
            )
        if transfer.destination == transfer.source:
            raise ValueError(f"{step.name}: tile {transfer.source} sends {transfer.variable} to itself.")
        sent.setdefault((transfer.variable, transfer.destination), []).append(transfer.elements)


def _check_vertex(step: str, vertex: Vertex, holders: _Holders, sent: _Sent) -> None:
    for region in vertex.reads:
        at = holders[region.variable]
        if at is None:
            continue
        absent = region.elements[at[region.elements] != vertex.tile]
        brought = sent.get((region.variable, vertex.tile), [])
        if len(absent) and not (brought and np.isin(absent, np.concatenate(brought)).all()):
            raise ValueError(
                f"{step}: a vertex on tile {vertex.tile} reads {region.variable}, which is not on the tile."
            )
    for written in vertex.writes:
        at = None if written is None else holders[written.variable]
        if written is not None and (at is None or (at[written.elements] != vertex.tile).any()):
            raise ValueError(f"{step}: a vertex on tile {vertex.tile} writes {written.variable} of another tile.")


def _check_apart(step: ComputeSet, holders: _Holders) -> None:
    """Check that only the writer of an element uses it in a compute set, since vertices run in any order."""
    writer: dict[str, np.ndarray] = {}
    for number, vertex in enumerate(step.vertices):
        for region in vertex.writes:
            at = None if region is None else holders[region.variable]
            if region is None or at is None:
                continue
            if region.variable not in writer:
                writer[region.variable] = np.full(len(at), -1)
            owner = writer[region.variable]
            if (owner[region.elements] >= 0).any():
                raise ValueError(f"{step.name}: two vertices write the same elements of {region.variable}.")
            owner[region.elements] = number
    for number, vertex in enumerate(step.vertices):
        for region in vertex.reads:
            at = holders[region.variable]
            if region.variable not in writer or at is None:
                continue
            # A received element is a copy of the value before this compute set.
            here = region.elements[at[region.elements] == vertex.tile]
            owner = writer[region.variable][here]
            if ((owner >= 0) & (owner != number)).any():
                raise ValueError(
                    f"{step.name}: a vertex reads elements of {region.variable} that another vertex writes."
                )
