"""Running programs on flat graphs, batch by batch, with results in the order of the graphs."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from popgeo.data.axes import GRAPHS, Axis, Level
from popgeo.data.batch_layout import for_all_graphs, lay_out
from popgeo.data.compiled_fill import Filler
from popgeo.data.cut import BatchMemory
from popgeo.data.fixed_size_options import FixedSizeOptions
from popgeo.data.flat_store import FlatStore
from popgeo.deploy.fixed_program import FixedModel, FixedProgram, Tensors, counts_of, input_name
from popgeo.deploy.predictions import Predictions, in_order
from popgeo.packing import Packs, totals_of_packs

_BYTES = 1 << 22  # largest memory of batches that are filled together
_BATCHES = 64  # largest number of batches that are filled together
TRIED = 16  # largest number of graphs that are also run alone
_CLOSE = 1e-2  # allowed difference of a result; rounding stays below it even in bfloat16


def run_batches(
    store: FlatStore,
    batches: Sequence[tuple[FixedProgram, Packs]],
    device: torch.device,
    numbers: np.ndarray,
    num_graphs: int,
) -> Predictions:
    """Return the results of all graphs in order, and the errors of failed graphs.

    If a batch fails, it is run again in halves until the failing graphs are found.

    Args:
        store: The graphs.
        batches: For each shape, its program, and the graphs of each batch.
        device: Device of the programs' inputs.
        numbers: Number of each graph of the store among all graphs. [len(store)]
        num_graphs: Number of all graphs, including graphs that are not in the store.
    """
    errors: dict[int, Exception] = {}
    came: list[np.ndarray] = []
    rows: dict[str, list[Tensor]] = {}
    axes: Mapping[str, Axis] = {}
    for program, packs in batches:
        axes = program.axes
        for ids, results in _Feed(store, program, device).run(packs, errors):
            came.append(ids)
            for name in axes:
                rows.setdefault(name, []).append(results[name])
    errors = {int(numbers[i]): error for i, error in errors.items()}
    if not came:
        return Predictions(num_graphs=num_graphs, errors=errors)
    joined = {name: torch.cat(parts).cpu() for name, parts in rows.items()}
    counts = {axis: np.full(num_graphs, axis == GRAPHS, np.int64) for axis in axes.values()}
    for axis, of_all in counts.items():
        of_all[numbers] = _rows_of_graphs(store, axis)
    return replace(in_order(joined, axes, numbers[np.concatenate(came)], counts), errors=errors)


def _rows_of_graphs(store: FlatStore, axis: Axis) -> np.ndarray:
    """Return the number of rows of each graph, int64 [num_graphs]."""
    return np.ones(len(store), np.int64) if axis == GRAPHS else store.counts(axis)


class _Feed:
    """A feed that fills batches of one shape and runs them."""

    def __init__(self, store: FlatStore, program: FixedProgram, device: torch.device) -> None:
        self.store, self.program, self.device = store, program, device
        self.layout = for_all_graphs(lay_out(store, program.sizes, program.layout), store)
        self.filler = Filler(store, self.layout)
        names = [input_name(slot) for slot in self.layout.slots]
        self.places = list(map(names.index, program.inputs))
        self.counts = {axis: _rows_of_graphs(store, axis)[:, None] for axis in program.axes.values()}
        each = sum(slot.dtype.itemsize * int(np.prod(slot.shape)) for slot in self.layout.slots)
        self.at_once = max(1, min(_BATCHES, _BYTES // max(each, 1)))

    def run(self, packs: Packs, errors: dict[int, Exception]) -> Iterator[tuple[np.ndarray, Tensors]]:
        """Yield the graphs of each batch and the rows of their results, and collect the errors of failed graphs."""
        memory = BatchMemory(self.layout, min(self.at_once, len(packs)))
        for start in range(0, len(packs), self.at_once):
            some = packs[start : start + self.at_once]
            self.filler(self.store.rows(some.indices), some.ptr, memory.tensors)
            real = {
                axis: totals_of_packs(each, some.indices, some.ptr)[:, 0].tolist() for axis, each in self.counts.items()
            }
            for i, (ids, tensors) in enumerate(zip(some, memory.items, strict=False)):
                try:
                    given = [tensors[place].to(self.device) for place in self.places]
                    results = self.program.run(*given)
                    # Copied, because the next batches may overwrite results or inputs.
                    rows = {name: results[name][: real[axis][i]].clone() for name, axis in self.program.axes.items()}
                    for name, axis in self.program.axes.items():
                        if len(rows[name]) < real[axis][i]:
                            raise ValueError(
                                f"Result {name!r} has {len(rows[name])} rows for {real[axis][i]} real ones."
                            )
                    # A stress that is NaN means no volume.
                    odd = any(one.isnan().any() for name, one in rows.items() if name != "stress")
                    if self.program.model is not None and odd:
                        with torch.no_grad():
                            self.program.model(*given)  # may raise an error that explains the NaN
                except Exception as error:  # of any kind: find the graph that caused it
                    if len(ids) == 1:
                        errors[int(ids[0])] = error
                    else:
                        yield from self.run(Packs.from_lists(np.array_split(ids, 2)), errors)
                else:
                    yield ids, rows


def warn_of_others(
    store: FlatStore, batches: Sequence[tuple[FixedProgram, Packs]], device: torch.device, left: int
) -> int:
    """Warn if a graph's result depends on the other graphs in its batch, or on the padding.

    Two graphs are run again, each alone in a batch of a different size. More graphs are run if results are whole
    numbers, which may agree by chance. If each batch has only one graph, one graph is run with different padding.

    Args:
        store: The graphs.
        batches: For each shape, its program, and the graphs of each batch.
        device: Device of the programs' inputs.
        left: Largest number of graphs to try, `TRIED` at first.

    Returns:
        Number of graphs to try in later batches.
    """
    some = [(program, ids) for program, packs in batches for ids in packs if len(ids) > 1]
    if left == TRIED:
        some = some or [(program, packs[0]) for program, packs in batches[:1]]
    tried = (results for program, ids in some for results in _alone_and_beside(store, program, ids, device))
    for results in islice(tried, left):
        left -= 1
        for name, (alone, beside) in results.items():
            if (differs := _differs(alone, beside)).any():
                apart = (beside.double() - alone.double()).abs()[differs].max()
                warnings.warn(
                    f"A graph's result depends on those that share its batch, or on padding: {name} differs by up to "
                    f"{apart:.2g} when the graph is alone. The model mixes the nodes of different graphs, or is "
                    "random: pass batch= and the number of graphs to its norms and poolings. popgeo.testing shows "
                    "which claim fails.",
                    stacklevel=5,
                )
                return 0
        if left <= TRIED - 2 and not any(_is_whole(alone) for alone, _ in results.values()):
            return 0
    return left


def _alone_and_beside(
    store: FlatStore, program: FixedProgram, ids: np.ndarray, device: torch.device
) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Yield, for each graph of a batch, its results alone and its results in the batch."""
    # The two largest graphs, which have rows of all kinds, become the first and the last of the batch.
    ids = np.roll(ids[np.argsort(-store.sizes[ids].sum(1), kind="stable")], -1)
    # If a graph fails, the remaining graphs run in several batches.
    parts = [*_Feed(store, program, device).run(Packs.from_lists([ids]), {})]
    for ids, of_batch in sorted(parts, key=lambda part: -len(part[0]))[:1]:
        ends = {name: np.cumsum(_rows_of_graphs(store, axis)[ids]) for name, axis in program.axes.items()}
        for place in dict.fromkeys([0, len(ids) - 1, *range(len(ids))]):
            one = store.view([ids[place]])
            found: dict[str, tuple[Tensor, Tensor]] = {}
            for _, of_one in _Feed(one, _for_one(program, one), device).run(Packs.from_lists([[0]]), {}):
                for name, alone in of_one.items():
                    beside = of_batch[name][ends[name][place] - len(alone) : ends[name][place]]
                    if alone.is_complex():
                        alone, beside = torch.view_as_real(alone), torch.view_as_real(beside)
                    found[name] = alone, beside
            yield found


def _differs(alone: Tensor, beside: Tensor) -> Tensor:
    """Return a mask of entries that differ by more than rounding. NaN equals NaN; whole numbers must be equal."""
    same = (alone == beside) | (alone.isnan() & beside.isnan())
    if not alone.is_floating_point():
        return ~same
    finite = torch.where(alone.isfinite(), alone, 0.0).double().abs()
    close = (beside.double() - alone.double()).abs() <= _CLOSE * (1 + (finite.max() if finite.numel() else 0.0))
    return ~(same | close)


def _is_whole(result: Tensor) -> bool:
    """Check whether all elements of a result are whole numbers, such as classes, or NaN."""
    return not result.is_floating_point() or bool((result.isnan() | (result == result.round())).all())


def _for_one(program: FixedProgram, store: FlatStore) -> FixedProgram:
    """Return the uncompiled model for one graph with the least padding; return a program from a file unchanged."""
    if program.model is None:
        return program
    slots = store.sizes[0] + [axis.level is Level.NODE for axis in store.size_axes]
    slots *= 1 + (slots == [program.sizes.slots(axis) for axis in store.size_axes])  # always other sizes
    small = FixedSizeOptions.from_sizes(store, slots, 2)
    num_graphs = 3 if program.sizes.num_graphs == 2 else 2
    sizes = replace(program.sizes, num_nodes=small.num_nodes, num_edges=small.num_edges, num_graphs=num_graphs)
    call, before, now = program.model.call, counts_of(program.sizes), counts_of(sizes)
    constants = {name: now[name] if before.get(name) == one else one for name, one in call.constants.items()}
    model = FixedModel(program.model.model, replace(call, constants=constants)).eval()
    return replace(program, run=torch.no_grad()(model), sizes=sizes.with_rows_for(store), model=model)


def slots_used(store: FlatStore, shapes: Sequence[FixedSizeOptions], packs: Sequence[Packs]) -> dict[str, np.ndarray]:
    """Return, for each type of node or edge and for graphs, the number of real rows and the number of slots, [2]."""
    axes = *store.size_axes, GRAPHS
    real = *store.sizes.sum(0).tolist(), len(store)
    slots = [sum(len(of) * shape.rows(axis, store) for shape, of in zip(shapes, packs, strict=True)) for axis in axes]
    return {axis.label: np.array(pair) for axis, *pair in zip(axes, real, slots, strict=True)}
