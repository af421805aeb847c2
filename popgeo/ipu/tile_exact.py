"""Runs a compiled model with separate memory for each tile, which proves that its program is complete."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from popgeo.capture.expand import expand
from popgeo.capture.held_state import module_state
from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.capture.passes import fold_constants
from popgeo.engine.compiled_step import CompiledStep
from popgeo.engine.denormals import DenormalFlushing
from popgeo.engine.gradient_accumulation import CallResults, check_apart, micro_batch, write_back
from popgeo.engine.optimizer.capture_update import UpdateGraph
from popgeo.engine.optimizer.coming_updates import ComingUpdates
from popgeo.engine.pipeline.random_draws import draws
from popgeo.engine.pipeline.staging import StagePart
from popgeo.engine.replicas import ReplicaState
from popgeo.ipu.ipu_machine import IpuPlan
from popgeo.ipu.systems.staged_program import StagedJoiner
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.join_program import Joiner, join
from popgeo.ipu.tiles.program import CallProgram, Program, Training
from popgeo.ipu.tiles.run_program import run_program
from popgeo.ipu.tiles.steps import Region
from popgeo.ipu.tiles.tile_memory import TileMemory


class TileExact:
    """A compiled model on tiles with separate memories; call it like the model, from its present state on.

    Each operation is divided over the tiles. A vertex reads and writes only the memory of its tile, and data moves
    by the program's transfers only. So equal results show that mapping, exchanges and program are complete. The model
    itself is not changed. A step in stages runs on several such machines next to each other, one per IPU. The tiles of
    an IPU hold the weights of its stages, and transfers between IPUs carry the values that one stage sends to another.

    Args:
        compiled: A compiled step of `training_model`, `inference_model` or `compile`, after its compilation.
        target: A small machine, since every vertex runs as Python; for stages, the machine of one IPU. Default: a Bow
            IPU of 8 tiles.

    Raises:
        ValueError: nothing is compiled, other processes hold replicas, the optimizer looks at whole tensors, the
            scale of the loss is dynamic, or stages that overlap draw random numbers.

    Example:
        >>> from popgeo import ipu
        >>> function = ipu.compile(lambda x: x.softmax(1) @ x.t(), [torch.ones(6, 4)])
        >>> x = torch.randn(6, 4)
        >>> exact = TileExact(function)
        >>> torch.allclose(exact(x), function(x)), exact.program.fallbacks
        (True, ())
    """

    def __init__(self, compiled: CompiledStep, target: IpuTarget | None = None) -> None:
        self._compiled, self._step, self._options = compiled, compiled.captured, compiled.options
        self._update = compiled.update
        states = compiled.replica_states()
        if self._options.replication_factor != len(states):
            raise ValueError(f"{self._options.replication_factor} replicas are spread over processes; use one process.")
        if compiled.loss_scale is not None:
            raise ValueError(
                "The step has a dynamic loss_scaling, which skips updates. A program of tiles skips none; compile with "
                "a constant loss_scaling."
            )
        self._target = target or dataclasses.replace(IpuTarget.bow(), name="Bow with 8 tiles", num_tiles=8)
        self._coming = None if self._update is None else ComingUpdates(self._update.worker())
        self._num_updates = 0 if self._update is None else self._update.num_updates
        self._programs: dict[tuple[int, ...], CallProgram] = {}
        self._last: CallProgram | None = None
        self._plan = compiled.plan.stages if isinstance(compiled.plan, IpuPlan) else None
        self._refuse_draws()
        ipus = self._target.num_ipus if self._plan is None else self._plan.pipeline.num_ipus
        self._tiles = self._target.num_tiles * ipus
        self._replicas = [TileMemory(state.generator.get_state()) for state in states]
        self._start = [self._start_of(state) for state in states]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step on the tiles and return the results of the model.

        Raises:
            ValueError: an argument differs from the arguments of the compilation, or the program is not complete.
        """
        tensors, graph_data = self._compiled.bound.flatten(args, kwargs)
        graph, parts = self._compiled.bound.on_processor.program_for(tensors)
        updates, numbers = self._next_updates()
        first = self._last is None
        self._last = joined = self._program_of(graph, updates, parts)
        if first:
            for memory, state in zip(self._replicas, self._start, strict=True):
                memory.use(joined.program)
                for name, values in _flat(state, joined).items():
                    memory.write(name, values)
        return self._compiled.bound.unflatten(self._run(joined, tensors, numbers), graph_data)

    def __repr__(self) -> str:
        """Return replicas, machine and number of operations."""
        replicas = f"{len(self._replicas)} replicas of " if len(self._replicas) > 1 else ""
        ops = len(fold_constants(self._step.expanded.graph).ops)
        return f"TileExact({replicas}{self._target.name}: {ops} operations on {self._tiles} tiles)"

    @property
    def program(self) -> Program:
        """The program of the last call.

        Raises:
            ValueError: there was no call.
        """
        return self._last_program().program

    def state_dict(self) -> dict[str, Tensor]:
        """Return parameters and buffers from the tiles of the first replica, by name.

        Raises:
            ValueError: there was no call.
        """
        joined, memory = self._last_program(), self._replicas[0]
        kept = {given: at for given, at in joined.places.items() if given.role in (Role.PARAMETER, Role.BUFFER)}
        flat = {variable: memory.read(variable) for variable in {at.variable for at in kept.values()}}
        return {given.name: flat[at.variable][torch.from_numpy(at.elements)] for given, at in kept.items()}

    def _last_program(self) -> CallProgram:
        """Return the program of the last call, or raise."""
        if self._last is None:
            raise ValueError("No program has run yet; call the TileExact first.")
        return self._last

    def _next_updates(self) -> tuple[list[UpdateGraph], list[list[float]]]:
        """Return the updates of a call and the numbers that the host gives to each of them."""
        updates, numbers = [], []
        if self._coming is not None and self._update is not None:
            for _ in range(self._options.device_iterations):
                update, needed = self._coming.next(self._update.settings(self._num_updates))
                if update is None:
                    raise ValueError(
                        f"{type(self._update.optimizer).__name__}'s update reads data in Python, or numbers that "
                        "cannot be foretold. TileExact needs an optimizer such as AdamW."
                    )
                updates.append(update)
                numbers.append(needed)
                self._num_updates += 1
        return updates, numbers

    def _refuse_draws(self) -> None:
        """Raise if stages that overlap draw random numbers."""
        if self._plan is None or self._plan.staging.one_at_a_time:
            return
        for op in self._step.graph.ops:
            if draws(op):
                raise ValueError(
                    f"{op.target} draws random numbers ({op.source}). Tiles draw them in the order of the stages, and "
                    "the compiled step in the order of the micro-batches. Compile with schedule='sharded'."
                )

    def _program_of(self, graph: OpGraph, updates: Sequence[UpdateGraph], parts: Sequence[StagePart]) -> CallProgram:
        """Return the program of a graph and its updates; each is made once."""
        key = (id(graph), *map(id, updates))
        if key not in self._programs:
            options, plan = self._options, self._plan
            training = Training() if self._update is None else Training(
                members=self._update.members(),
                trained=self._step.trained,
                updates=updates,
                scaling=self._update.capture_scaling(),
            )  # fmt: skip
            rounds = options.device_iterations
            if plan is None:
                joiner = Joiner(expand(graph), self._step.num_results, self._target, training)
            else:
                joiner = StagedJoiner(graph, self._step.num_results, self._target, training, parts, plan)
                rounds = rounds if updates else 1
            self._programs[key] = join(joiner, rounds, options.gradient_accumulation, options.replication_factor)
        return self._programs[key]

    def _run(self, joined: CallProgram, tensors: Sequence[Tensor], numbers: list[list[float]]) -> list[Tensor]:
        """Run the program of one call on the machine, with the host at the other end of its streams."""
        options, replicas, step = self._options, len(self._replicas), self._step
        mode = options.chosen_output_mode(trains=self._update is not None)
        results = CallResults(mode, options.output_period, options.steps_per_call)
        arguments = joined.arguments()
        names = list(arguments)
        check_apart(tensors, [names.index(str(one)) for one in step.written])
        updates = [iter(numbers) for _ in range(replicas)]
        arrived: list[dict[str, Tensor]] = [{} for _ in range(replicas)]
        passed = Counter[tuple[str, int]]()  # micro-batches of each stream and replica
        streams = {stream for stream, _ in joined.results}

        def next_micro_batch(stream: str, replica: int) -> tuple[int, list[Tensor]]:
            number = passed[stream, replica]
            passed[stream, replica] += 1
            return number, micro_batch(tensors, number * replicas + replica, options.batch_factor)

        def host_in(stream: str, replica: int) -> Tensor:
            if stream not in names:
                return torch.tensor(next(updates[replica]), dtype=torch.float64)
            _, micro = next_micro_batch(stream, replica)
            return _put(joined, arguments[stream], micro[names.index(stream)])

        def host_out(stream: str, replica: int, values: Tensor) -> None:
            found = arrived[replica]
            found[stream] = values
            if len(found) == len(streams):
                made = [found[name][torch.from_numpy(elements)] for name, elements in joined.results]
                number, micro = next_micro_batch("results", replica)
                if results.wants(number):
                    results.add(number, replica, made[: step.num_returned])
                write_back([micro[names.index(str(one))] for one in step.written], made[step.num_returned :])
                found.clear()

        # The engine flushes denormal numbers, too, and the results must be equal.
        with torch.no_grad(), DenormalFlushing():
            run_program(joined.program, self._replicas, host_in, host_out)
        return results.join()

    def _start_of(self, replica: ReplicaState) -> dict[Input, Tensor]:
        """Return copies of the state that a replica starts from: weights, buffers and optimizer state."""
        own = {Input(Role.BUFFER, name): tensor for name, tensor in replica.buffers.items()}
        tensors = module_state(self._compiled.model) | own
        updated = {} if self._update is None else self._update.worker().tensors()
        tensors |= {given: _in_memory_order(part) for given, part in updated.items() if given.role is Role.STATE}
        return {given: tensor.detach().clone() for given, tensor in tensors.items()}


def _flat(state: Mapping[Input, Tensor], joined: CallProgram) -> dict[str, Tensor]:
    """Return the initial content of each variable that holds some of the state, flat."""
    flat: dict[str, Tensor] = {}
    for given, tensor in state.items():
        at = joined.places[given]
        flat[at.variable] = _put(joined, at, tensor, flat.get(at.variable))
    return flat


def _put(joined: CallProgram, at: Region, tensor: Tensor, flat: Tensor | None = None) -> Tensor:
    """Return `flat`, or zeros if it is None, with the elements of a tensor written to their places in the variable."""
    if flat is None:
        held = joined.program.variables[at.variable]
        flat = torch.zeros(held.mapping.numel, dtype=held.dtype)
    flat[torch.from_numpy(at.elements.ravel())] = tensor.detach().reshape(-1)
    return flat


def _in_memory_order(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor in the order of memory, flat."""
    return torch.as_strided(tensor.detach(), (tensor.numel(),), (1,), tensor.storage_offset())
