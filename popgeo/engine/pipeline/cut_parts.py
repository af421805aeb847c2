"""Cuts a step into parts: one part for the forward pass and one for the backward pass of each stage."""

from collections.abc import Mapping, Sequence

from popgeo.capture.op_graph import Input, Op, OpGraph, Role
from popgeo.capture.passes import renumbered, with_producers
from popgeo.engine.pipeline.random_draws import draws
from popgeo.engine.pipeline.replay import replayable
from popgeo.engine.pipeline.staging import StagePart, Staging, StashedValue, owner_of, phase_of


def parts_of(graph: OpGraph, staging: Staging, *, num_results: int, trained: Sequence[str] = ()) -> list[StagePart]:
    """Return the parts of a step, in the order that each micro-batch runs them.

    Each part creates the views that it needs, so parts exchange only whole tensors, and each tensor once.

    Args:
        graph: The step of one micro-batch, with constants folded.
        staging: The stage of each operation.
        num_results: Number of outputs that are results; the others are gradients.
        trained: Names of the parameters, in the order of their gradients. Default: none.

    Raises:
        ValueError: a stage needs a value from a later stage; the message names the module.
    """
    return _Cutter(graph, staging, num_results, trained).parts()


class _Cutter:
    """The analysis of a step: the operations of each pass, and the values that passes exchange.

    A pass is a stage with a direction; its rank is its place in the order of passes.
    """

    def __init__(self, graph: OpGraph, staging: Staging, num_results: int, trained: Sequence[str]) -> None:
        self._graph, self._staging = graph, staging
        self._num_results, self._trained = num_results, trained
        stages = max(staging.stage_of) + 1
        self._passes = [(s, False) for s in range(stages)]
        if any(one.backward for one in staging.order):
            self._passes += [(s, True) for s in reversed(range(stages))]
        self._rank = {one: rank for rank, one in enumerate(self._passes)}
        self._given = {v: given for given, v in graph.inputs.items()}
        self._state = {graph.values[v].storage: v for v, one in self._given.items() if one.role is not Role.ARGUMENT}
        self._place = self._places()
        self._writers: dict[int, list[int]] = {}
        for index, op in enumerate(graph.ops):
            for v in op.writes:
                self._writers.setdefault(graph.values[v].storage, []).append(index)
        self._views = [graph.is_view(op) for op in graph.ops]
        self._needs: list[set[int]] = [set() for _ in self._passes]  # operations that each pass runs
        self._outside: list[set[int]] = [set() for _ in self._passes]  # values that each pass receives
        self._check_order()

    def parts(self) -> list[StagePart]:
        """Return the parts in order."""
        gradients = self._gradients()
        for rank, (stage, backward) in enumerate(self._passes):
            again = set[int]()
            if backward and self._staging.recompute is not None:
                forward, is_last = self._own(self._rank[stage, False]), stage == max(self._staging.stage_of)
                again = replayable(self._graph, forward, self._staging.recompute, is_last=is_last)
            of_gradients = [made for v in gradients[rank].values() for made in self._repeated_makers(rank, v, again)]
            for index in (*self._own(rank), *of_gradients):
                self._add(rank, index, again)
        taken = [self._received(rank) for rank in range(len(self._passes))]
        results = self._graph.outputs[: self._num_results]
        # The host receives the results, like a further pass after the last one.
        of_host = [StashedValue(owner_of(self._graph, v)) for v in results if v is not None]
        wanted: list[set[StashedValue]] = [set() for _ in self._passes]  # values that each pass leaves for later ones
        for rank, received in enumerate([*taken, of_host]):
            for kept in received:
                for source in self._sources(kept, rank):
                    wanted[source].add(kept)
        return [self._part(rank, taken[rank], wanted[rank], gradients[rank]) for rank in range(len(self._passes))]

    def _own(self, rank: int) -> list[int]:
        """Return the operations of a pass, without views."""
        return [index for index, at in enumerate(self._place) if at == rank and not self._views[index]]

    def _places(self) -> list[int]:
        """Return the pass of each operation.

        A copy that replaces a buffer at the end of a step moves to the pass that makes the new value.
        """
        graph, staging = self._graph, self._staging
        held = set(self._state.values())
        backward = phase_of(graph.ops, lambda op: not held.isdisjoint(op.writes))
        stages = list(staging.stage_of)
        last_touch = {graph.values[v].storage: i for i, op in enumerate(graph.ops) for v in op.reads()}
        maker = {v: i for i, op in enumerate(graph.ops) for v in op.makes() if v not in op.reads()}
        for index, op in enumerate(graph.ops):
            moved = backward[index] is not (op.phase == "backward")
            final = any(last_touch[graph.values[v].storage] == index for v in op.writes if v in held)
            if moved or (final and op.target == "aten.copy_.default"):
                stages[index] = max((stages[maker[v]] for v in op.reads() if v in maker), default=0)
        return [self._rank[s, b and (s, True) in self._rank] for s, b in zip(stages, backward, strict=True)]

    def _add(self, rank: int, first: int, again: set[int]) -> None:
        """Add an operation to a pass, with the operations that the pass must run for it."""
        waiting = [first]
        while waiting:
            index = waiting.pop()
            if index in self._needs[rank]:
                continue
            self._needs[rank].add(index)
            op = self._graph.ops[index]
            waiting += [producer for v in op.reads() for producer in self._repeated_makers(rank, v, again)]
            if index in again:  # repeat the changes in place too, on a copy
                storages = {self._graph.values[v].storage for v in (*op.reads(), *op.makes())}
                waiting += [writer for s in storages for writer in self._writers.get(s, ()) if writer in again]

    def _repeated_makers(self, rank: int, v: int, again: set[int]) -> list[int]:
        """Return the operation that a pass runs again for a value; none if the pass makes or receives the value."""
        producer = self._graph.values[v].producer
        if producer is not None and (self._views[producer] or producer in again):
            return [producer]
        if producer is None or self._place[producer] != rank:
            self._outside[rank].add(v)
        return []

    def _received(self, rank: int) -> list[StashedValue]:
        """Return the values that a pass receives from other passes or from the call."""
        found = []
        for v in sorted(self._outside[rank] - self._graph.constants.keys()):
            given = self._given.get(v)
            if given is None or given.role is Role.ARGUMENT:
                found.append(StashedValue(v))
            elif self._writers.get(self._graph.values[v].storage):
                found += self._version(rank, v)
        return found

    def _version(self, rank: int, v: int) -> list[StashedValue]:
        """Return the saved values of a changed buffer that a pass needs; none if the pass reads the buffer itself."""
        ops, values, storage = self._graph.ops, self._graph.values, self._graph.values[v].storage
        writers = self._writers[storage]
        homes = {self._place[i] for i in writers}
        if rank in homes and len(homes) == 1:
            return []
        touching = [i for i in self._needs[rank] if any(values[u].storage == storage for u in ops[i].reads())]
        repeats = any(i in writers and self._place[i] != rank for i in touching)
        if (len(homes) > 1 or rank < min(homes)) and not repeats:
            if not self._staging.one_at_a_time:
                reader, writer = min(touching), max(writers)
                raise ValueError(
                    f"Stages feed back: {self._where(reader, rank)} reads {self._given[v].name}, which "
                    f"{self._where(writer, self._place[writer])} changes for the next micro-batch. Put both in one "
                    "stage, or choose schedule='sharded', where each micro-batch waits for the one before."
                )
            return []
        reading = [i for i in touching if not self._views[i]]
        if repeats or all(i < min(writers) for i in reading):
            return [StashedValue(v, before=True)]
        if all(i > max(writers) for i in reading):
            return [StashedValue(v)]
        raise ValueError(
            f"{self._where(reading[0], rank)} reads {self._given[v].name} both before and after another stage changes "
            "it. Put the two in one stage."
        )

    def _sources(self, kept: StashedValue, rank: int) -> set[int]:
        """Return the passes that leave a value for a later pass: the pass that makes it, and all that change it."""
        value = self._graph.values[kept.value]
        earlier = {self._place[i] for i in self._writers.get(value.storage, ()) if self._place[i] < rank}
        if value.producer is None:
            return earlier if kept.value in self._given else set()
        made = self._place[value.producer]
        if made >= rank:
            reader = next(i for i in sorted(self._needs[rank]) if kept.value in self._graph.ops[i].reads())
            raise ValueError(
                f"Stages feed back: {self._where(reader, rank)} needs a result of {self._where(value.producer, made)}. "
                "Number the stages in the order in which the model runs them."
            )
        return {made, *earlier}

    def _part(
        self, rank: int, taken: Sequence[StashedValue], wanted: set[StashedValue], gradients: dict[str, int]
    ) -> StagePart:
        """Return the part of a pass.

        Args:
            rank: The rank of the pass.
            taken: Values that the pass receives.
            wanted: Values that later passes need from it.
            gradients: The gradients that the pass finishes, by the name of the parameter.
        """
        stage, backward = self._passes[rank]
        graph = self._graph
        received = {kept.value for kept in taken}
        ops = [graph.ops[index] for index in sorted(self._needs[rank])]
        sends = sorted(kept.value for kept in wanted if not kept.before)
        outputs = [*sends, *gradients.values()]
        touched = {v for op in ops for v in (*op.reads(), *op.makes())} | set(outputs)
        inputs = {given: v for v, given in self._given.items() if v in touched and v not in received}
        inputs = {given: v for given, v in inputs.items() if given.role is not Role.ARGUMENT}
        inputs |= {Input(Role.ARGUMENT, f"{kept.value}"): kept.value for kept in taken}
        return StagePart(
            stage=stage,
            backward=backward,
            graph=self._graph_of(ops, inputs, outputs),
            receives=tuple(taken),
            sends=tuple(sends),
            saves={kept: self._given[kept.value] for kept in wanted if kept.before},
            gradients=tuple(gradients),
            draws=tuple(i for i in sorted(self._needs[rank]) if self._place[i] == rank and draws(graph.ops[i])),
        )

    def _graph_of(self, ops: Sequence[Op], inputs: Mapping[Input, int], outputs: Sequence[int]) -> OpGraph:
        """Return a graph of some operations, with new numbers of values."""
        used = {*inputs.values(), *outputs, *(v for op in ops for v in (*op.reads(), *op.makes()))}
        number = {v: place for place, v in enumerate(sorted(used))}
        ops = tuple(renumbered(op, number.__getitem__, number.__getitem__) for op in ops)
        given = {one: number[v] for one, v in inputs.items()}
        constants = {number[v]: tensor for v, tensor in self._graph.constants.items() if v in used}
        values = with_producers([self._graph.values[v] for v in number], ops, {*given.values(), *constants})
        results = tuple(number[v] for v in outputs)
        return OpGraph(ops=ops, values=values, inputs=given, outputs=results, constants=constants)

    def _gradients(self) -> list[dict[str, int]]:
        """Return the gradients that each pass finishes: the last pass that makes or changes a gradient finishes it."""
        found: list[dict[str, int]] = [{} for _ in self._passes]
        graph = self._graph
        for name, v in zip(self._trained, graph.outputs[self._num_results :], strict=True):
            assert v is not None
            value = graph.values[v]
            own = value.producer, graph.values[owner_of(graph, v)].producer
            makers = [*self._writers.get(value.storage, ()), *(made for made in own if made is not None)]
            at = [self._place[i] for i in makers if self._passes[self._place[i]][1]]
            found[max(at, default=self._rank[max(self._rank)[0], True])][name] = v
        return found

    def _check_order(self) -> None:
        """Check that several passes which change a value in place do so in the order of the passes.

        Raises:
            ValueError: they do not.
        """
        changed = self._writers.keys() - self._state.keys()
        for index, op in enumerate(self._graph.ops):
            if self._views[index]:
                continue
            touched = {self._graph.values[v].storage for v in (*op.reads(), *op.makes())} & changed
            for writer in (writer for storage in touched for writer in self._writers[storage]):
                there, here = self._place[writer], self._place[index]
                if there != here and (index < writer) is not (here < there):
                    raise ValueError(
                        f"Stages feed back: {self._where(writer, there)} changes in place a tensor "
                        f"that {self._where(index, here)} uses. Make a new tensor there."
                    )

    def _where(self, index: int, rank: int) -> str:
        op = self._graph.ops[index]
        place = f"module {op.module}" if op.module else op.source or op.target
        return f"{place} in {self._staging.name(self._passes[rank][0])}"
