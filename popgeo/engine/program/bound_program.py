"""The program of a graph: stretches of native calls, and calls of torch between them, on fixed memory."""

import ctypes
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Op, OpGraph
from popgeo.capture.operations import Out, operation_of
from popgeo.engine import out_variants
from popgeo.engine.fuse.def_use import is_contiguous
from popgeo.engine.program import (  # noqa: F401  they fill LOWERINGS
    lower_copies,
    lower_elements,
    lower_fused,
    lower_graph_sums,
    lower_own_ops,
    lower_products,
    lower_rows,
    lower_sums,
)
from popgeo.engine.program.lower_torch_ops import lower_with_torch
from popgeo.engine.program.native_call import LOWERINGS, NativeCall
from popgeo.engine.program.stretch import Stretch
from popgeo.engine.program.torch_call import Call, torch_call
from popgeo.native import library

Check = Callable[[Op, list[Tensor], list[Tensor]], None]


class BoundProgram:
    """The operations of a graph, lowered to calls on fixed memory.

    Args:
        graph: The graph to run.
        tensors: The tensor of each value.
        inputs: Values that native calls may read at another address in each run.
        check: Function to call after each operation with the operation, its operands and its results. Default: none.
        pauses: Whether an interrupt can stop the program between two native calls.

    Attributes:
        follows: For each of `inputs`, whether only native calls read it, so that `move` suffices and no copy is needed.
        in_torch: The operations that run in torch.
        num_stretches: The number of stretches of native calls.
        copied_bytes: The most bytes that torch allocates for the results of one call, before they are copied.
    """

    def __init__(
        self,
        graph: OpGraph,
        tensors: Mapping[int, Tensor],
        inputs: Sequence[int] = (),
        check: Check | None = None,
        pauses: bool = True,
    ) -> None:
        self._graph, self._tensors, self._pauses = graph, tensors, pauses
        self._numbers: dict[int, float] = {}
        self.copied_bytes = 0
        pairs = [(op, call) for op in graph.ops if (call := self._lowered(op)) is not None]
        self._numbers_of_calls = [place for _, call in pairs if isinstance(call, NativeCall) for place in call.numbers]
        self.in_torch = [op for op, call in pairs if not isinstance(call, NativeCall)]
        self._num_native = len(pairs) - len(self.in_torch)
        self.follows = [self._follows(v, pairs) for v in inputs]
        self._sources = np.array([1, *(tensors[v].data_ptr() for v in inputs)], np.int64)
        moving = [(i, v) for i, (v, follows) in enumerate(zip(inputs, self.follows, strict=True)) if follows]
        self._spans = [(i, tensors[v].data_ptr(), tensors[v].nbytes) for i, v in moving]
        self._calls: list[Call] = []
        natives: list[tuple[Op, NativeCall]] = []
        for op, call in pairs:
            if isinstance(call, NativeCall):
                natives.append((op, call))
            else:
                self._end_stretch(natives)
                self._calls.append(call)
            if check is not None:
                self._end_stretch(natives)
                self._calls.append(partial(check, op, self._tensors_of(op.reads()), self._tensors_of(op.makes())))
        self._end_stretch(natives)
        self.num_stretches = sum(isinstance(call, Stretch) for call in self._calls)

    def run(self) -> None:
        """Run the program once."""
        self._sources[0] = torch.get_num_threads()
        for call in self._calls:
            call()

    def describe(self) -> str:
        """Return a text: the number of native calls and stretches, then each operation in torch with its line."""
        stretches = f"{self.num_stretches:,} stretch{'' if self.num_stretches == 1 else 'es'}"
        found = Counter(f"{op.target} ({op.phase}), {op.source}" for op in self.in_torch)
        rows = [f"  {count:,} x {text}" for text, count in found.most_common()]
        calls = f"{self._num_native:,} native call{'' if self._num_native == 1 else 's'}"
        return "\n".join([f"{calls} in {stretches}", *(["in torch between them:"] if rows else []), *rows])

    def move(self, number: int, address: int) -> None:
        """Let later runs read one of `inputs` at another address, with the same layout."""
        self._sources[1 + number] = address

    def set_numbers(self, values: Sequence[float]) -> None:
        """Set the values of the graph's `Number` arguments, by slot, for later runs."""
        self._numbers.update(enumerate(values))
        for array, index, slot in self._numbers_of_calls:
            array[index] = values[slot]

    def _lowered(self, op: Op) -> NativeCall | Call | None:
        if self._graph.is_view(op) or operation_of(op.target).out is Out.NOTHING:
            return None
        is_compiled = library.is_available()
        lower = LOWERINGS.get(op.target) if is_compiled else None
        if lower is not None and (native := lower(self._graph, op, self._tensors)) is not None:
            return native
        if not op.writes and out_variants.allocates(self._graph, op):
            made = sum(self._graph.values[v].nbytes for v in op.makes())
            self.copied_bytes = max(self.copied_bytes, made)
        native = lower_with_torch(self._graph, op, self._tensors) if is_compiled else None
        return native or torch_call(self._graph, op, self._tensors, self._numbers)

    def _follows(self, v: int, pairs: Sequence[tuple[Op, NativeCall | Call]]) -> bool:
        graph, storage = self._graph, self._graph.values[v].storage
        kept = {graph.values[w].storage for w in graph.outputs if w is not None} | graph.mutated_storages()
        fixed = [op for op, call in pairs if not isinstance(call, NativeCall) or call.is_fixed]
        seen = {graph.values[w].storage for op in fixed for w in (*op.reads(), *op.makes())}
        return storage not in kept | seen and is_contiguous(graph.values[v])

    def _end_stretch(self, pairs: list[tuple[Op, NativeCall]]) -> None:
        """Append a stretch of the given native calls, if there are any, and clear them."""
        ops = [op for op, _ in pairs]

        def decline(index: int) -> None:
            """Let torch run an operation whose native call did not; it raises torch's error for invalid operands."""
            for number, place, nbytes in self._spans:  # torch reads inputs at their places
                if (address := int(self._sources[1 + number])) != place:
                    ctypes.memmove(place, address, nbytes)
            torch_call(self._graph, ops[index], self._tensors, self._numbers)()

        if pairs:
            calls = [call for _, call in pairs]
            self._calls.append(Stretch(calls, self._sources, self._spans, decline, self._pauses))
            pairs.clear()

    def _tensors_of(self, values: Sequence[int]) -> list[Tensor]:
        return [self._tensors[v] for v in values]
