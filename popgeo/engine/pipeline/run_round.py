"""Runs a round of micro-batches in stages; each part has its own memory.

A round is the micro-batches of one update, or of a whole call of a forward pass.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from popgeo.capture.marks import empty_like
from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.capture.passes import fold_constants
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.memory_plan import byte_offset, storage_spans, view_of
from popgeo.engine.pipeline.cut_parts import parts_of
from popgeo.engine.pipeline.random_draws import drawing_from, draws, draws_ahead, uncounted
from popgeo.engine.pipeline.staging import StagePart, Staging, StashedValue, owner_of

Held = dict[StashedValue, Tensor]  # values of one micro-batch that wait for later parts


class RoundRunner:
    """The parts of a step, run in the order of a staging.

    Args:
        graph: The step of one micro-batch.
        staging: The stage of each operation, and the order of passes.
        state: Tensors of the graph's parameters and buffers; buffers change in place.
        num_results: Number of the graph's outputs that are results; the others are gradients.
        gradients: Tensors for the gradient of each parameter, in the order of the graph's outputs.
        floating_point_exceptions: Whether to check each operation's result. Default: False.

    Attributes:
        graph: The step, with constants computed.
        parts: The parts, in the order in which a micro-batch passes through them.
        most_held: The most bytes that waited for later parts at one time, over all micro-batches and replicas.
    """

    def __init__(
        self,
        graph: OpGraph,
        staging: Staging,
        state: Mapping[Input, Tensor],
        num_results: int,
        gradients: Mapping[str, Tensor],
        floating_point_exceptions: bool = False,
        in_order: bool = False,
    ) -> None:
        self.graph, self._staging = fold_constants(graph), staging
        self.parts = parts_of(self.graph, staging, num_results=num_results, trained=list(gradients))
        self.draws_random_numbers = any(draws(op) for op in self.graph.ops)
        for op in self.graph.ops:
            if uncounted(op) and not staging.one_at_a_time:
                raise ValueError(
                    f"How many random numbers {op.target} draws depends on the data ({op.source}), so the next "
                    "micro-batch cannot start before this one has finished. Choose schedule='sharded'."
                )
        self._stays = {v: state[one].detach() for one, v in graph.inputs.items() if one in state}
        self._stays |= self.graph.constants
        self._owners = [None if v is None else owner_of(self.graph, v) for v in self.graph.outputs[:num_results]]
        self._bound = {
            (part.stage, part.backward): _BoundPart(part, state, gradients, floating_point_exceptions, in_order)
            for part in self.parts
        }
        self._last_use = self._last_uses()
        self.most_held = 0

    def run(
        self,
        inputs: Sequence[Sequence[Sequence[Tensor]]],
        random: Sequence[torch.Generator],
        *,
        on_results: Callable[[int, int, list[Tensor | None]], object],
        on_gradients: Callable[[Sequence[str], bool], object] | None = None,
        of_replica: Callable[[int], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Run a round on all replicas; each pass runs on one replica after the other.

        Args:
            inputs: The tensors of each micro-batch of each replica.
            random: The random generator of each replica.
            on_results: Called with a micro-batch, a replica and its results when the micro-batch has finished.
            on_gradients: Called with the names of finished gradients, and whether they are the first of the round.
                Default: none, for a forward pass.
            of_replica: Returns a context for a replica, in which its parts run. Default: no context.
        """
        replicas, ahead = range(len(random)), None
        if self.draws_random_numbers and not self._staging.one_at_a_time:
            count = self._staging.micro_batches
            ahead = [draws_ahead(self.graph, self.parts, generator, count) for generator in random]
        numbers = range(self._staging.micro_batches)
        live = {(number, replica): self._given(inputs[number][replica]) for number in numbers for replica in replicas}
        last = {now.micro_batch: number for number, now in enumerate(self._staging.order)}
        arguments = {StashedValue(v) for v in self.graph.inputs_of(Role.ARGUMENT).values()}
        for number, now in enumerate(self._staging.order):
            bound = self._bound[now.stage, now.backward]
            for replica in replicas:
                held = live[now.micro_batch, replica]
                with of_replica(replica):
                    if ahead is not None:
                        random[replica].set_state(ahead[replica].before[now.micro_batch, now.stage, now.backward])
                    if bound.part.draws:
                        drawing_from(random[replica], bound.run, held)
                    else:
                        bound.run(held)
                    made = self._results(held) if last[now.micro_batch] == number else None
                for kept in self._last_use.get((now.stage, now.backward), ()):
                    held.pop(kept, None)
                if on_gradients is not None and bound.part.gradients:
                    on_gradients(bound.part.gradients, now.micro_batch == 0 and replica == 0)
                waiting = (t for one in live.values() for kept, t in one.items() if kept not in arguments)
                self.most_held = max(self.most_held, sum(t.nbytes for t in waiting))
                if made is not None:
                    on_results(now.micro_batch, replica, made)
                    del live[now.micro_batch, replica]
        for generator, (_, after) in zip(random, ahead or (), strict=False):
            generator.set_state(after)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all parts, and the most bytes that waited for a later part in any round so far."""
        return sum(bound.runner.buffer_bytes + bound.input_bytes for bound in self._bound.values()) + self.most_held

    def listing(self) -> str:
        """Return a text: the calls of each part."""
        return "\n".join(
            f"stage {part.stage}, {'backward' if part.backward else 'forward'}: {self._bound[key].runner.listing()}"
            for part in self.parts
            if (key := (part.stage, part.backward)) in self._bound
        )

    def describe(self) -> tuple[str, str]:
        """Return two texts: how the parts run, and the number of stages."""
        joined = [bound.runner.describe() for bound in self._bound.values()]
        first = ", ".join(dict.fromkeys(text for text, _ in joined if text))
        return first, f"{len({part.stage for part in self.parts})} stages"

    def _given(self, tensors: Sequence[Tensor]) -> Held:
        arguments = self.graph.inputs_of(Role.ARGUMENT).values()
        return {StashedValue(v): tensor.contiguous() for v, tensor in zip(arguments, tensors, strict=True)}

    def _results(self, held: Held) -> list[Tensor | None]:
        """Return the results of a micro-batch from the values that its parts have left."""
        values, made = self.graph.values, list[Tensor | None]()
        for v, owner in zip(self.graph.outputs, self._owners, strict=False):
            if v is None or owner is None:
                made.append(None)
                continue
            whole = held[StashedValue(owner)] if StashedValue(owner) in held else self._stays[owner]
            made.append(whole if v == owner else view_of(whole, byte_offset(values[owner]), values[v]))
        return made

    def _last_uses(self) -> dict[tuple[int, bool], list[StashedValue]]:
        """Return for each part the values that no later part needs."""
        last: dict[StashedValue, tuple[int, bool]] = {}
        for part in self.parts:
            values = [*part.receives, *part.saves, *map(StashedValue, part.sends)]
            last |= dict.fromkeys(values, (part.stage, part.backward))
        results = {StashedValue(owner) for owner in self._owners if owner is not None}
        found = defaultdict[tuple[int, bool], list[StashedValue]](list)
        for kept in last.keys() - results:
            found[last[kept]].append(kept)
        return found


class _BoundPart:
    """A part with its own memory, to which received values are copied."""

    def __init__(
        self,
        part: StagePart,
        state: Mapping[Input, Tensor],
        gradients: Mapping[str, Tensor],
        floating_point_exceptions: bool,
        in_order: bool,
    ) -> None:
        self.part = part
        values = part.graph.values
        given = {one: tensor for one, tensor in state.items() if one in part.graph.inputs}
        received = list(part.graph.inputs_of(Role.ARGUMENT).items())
        spans = storage_spans([values[v] for _, v in received])
        memory = {storage: torch.zeros(nbytes, dtype=torch.uint8) for storage, nbytes in spans.items()}
        self._places = [view_of(memory[values[v].storage], 0, values[v]) for _, v in received]
        self.input_bytes = sum(tensor.nbytes for tensor in memory.values())
        given |= {one: place for (one, _), place in zip(received, self._places, strict=True)}
        self._saved = [(kept, given[one]) for kept, one in part.saves.items()]
        places = {len(part.sends) + number: gradients[name] for number, name in enumerate(part.gradients)}
        self.runner = GraphRunner(part.graph, given, places, floating_point_exceptions, in_order=in_order)

    def run(self, held: Held) -> None:
        """Run the part for one micro-batch on received values, and add the values that it sends."""
        part = self.part
        with torch.no_grad():
            for kept, place in zip(part.receives, self._places, strict=True):
                place.copy_(held[kept])
            for kept, tensor in self._saved:
                held[kept] = tensor.detach().clone()
            made = self.runner.run(())
            for v, number, sent in zip(part.sends, part.graph.outputs, made, strict=False):
                assert number is not None
                assert sent is not None
                held[StashedValue(v)] = empty_like(part.graph.values[number]).copy_(sent)
