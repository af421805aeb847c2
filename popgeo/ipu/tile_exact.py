"""Runs a compiled model with the memory of each tile apart, which proves that its program is complete."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.engine import micro_batches
from popgeo.engine.call_options import chosen_output_mode
from popgeo.engine.optimizer.capture_update import UpdateGraph, tensors_of
from popgeo.engine.optimizer.rehearse import Rehearsal
from popgeo.ipu.compiled_function import Executable
from popgeo.ipu.compiled_model import CompiledModel
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.call_program import Training, join
from popgeo.ipu.tiles.lower.builder import elements_of, in_storage_order
from popgeo.ipu.tiles.map_tensors import storage_sizes
from popgeo.ipu.tiles.program import Program
from popgeo.ipu.tiles.run_program import run_program
from popgeo.ipu.tiles.tile_memory import TileMemory


class TileExact:
    """A compiled model on tiles that own their memory; called like the model, from whose present state it starts.

    Each operation is divided over the tiles. A vertex reads and writes its own tile's memory, and data moves by the
    program's transfers only; so equal results show that mapping, exchange and program leave nothing out. The model
    itself is not changed.

    Args:
        compiled: What `training_model`, `inference_model` or `compile` made, compiled already.
        target: A small machine, since every vertex runs as Python; a Bow IPU of 8 tiles by default.

    Raises:
        ValueError: nothing is compiled, other processes hold replicas, or the optimizer looks at more than one element.

    Example:
        >>> from popgeo import ipu
        >>> function = ipu.compile(lambda x: x.softmax(1) @ x.t(), [torch.ones(6, 4)])
        >>> x = torch.randn(6, 4)
        >>> exact = TileExact(function)
        >>> torch.allclose(exact(x), function(x)), exact.program.fallbacks
        (True, ())
    """

    def __init__(self, compiled: CompiledModel | Executable, target: IpuTarget | None = None) -> None:
        if isinstance(compiled, CompiledModel) and not compiled.is_compiled:
            raise ValueError("The model has not been compiled yet; call it or .compile(...) first.")
        step = compiled.compiled
        self._call = dataclasses.replace(step.call, remedy="Compile anew for other shapes.")
        self._runner, self._options, self._update = step.runner, step.options, step.update
        generators = self._runner.generators
        if self._options.replication_factor != len(generators):
            raise ValueError(
                f"The {self._options.replication_factor} replicas are spread over processes; run all of them in one."
            )
        self._target = target or dataclasses.replace(IpuTarget.bow(), name="Bow with 8 tiles", num_tiles=8)
        self._rehearsal = None if self._update is None else Rehearsal(self._update.worker())
        self._num_updates = 0 if self._update is None else self._update.num_updates
        self._programs: dict[tuple[int, ...], Program] = {}
        self._program: Program | None = None
        self._tiles = self._target.num_tiles * self._target.num_ipus
        self._replicas = [TileMemory(self._tiles, generator.get_state()) for generator in generators]
        self._graph = self._runner.graph_runner.graph
        self._start = [self._state_of(replica) for replica in range(len(generators))]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns for the same arguments.

        Raises:
            ValueError: an argument differs from what the model was compiled for, or the program is not complete.
        """
        tensors, graph_data = self._call.flatten(args, kwargs)
        graph = self._runner.graph_for(tensors)
        updates, numbers = self._rehearse()
        first = self._program is None
        self._program = self._program_of(graph, updates)
        if first:
            for memory, state in zip(self._replicas, self._start, strict=True):
                memory.use(self._program)
                for name, values in state.items():
                    memory.write(name, values)
        return self._call.unflatten(self._run(graph, tensors, numbers), graph_data)

    def __repr__(self) -> str:
        replicas = f"{len(self._replicas)} replicas of " if len(self._replicas) > 1 else ""
        return f"TileExact({replicas}{self._target.name}: {len(self._graph.ops)} operations on {self._tiles} tiles)"

    @property
    def program(self) -> Program:
        """What the last call ran.

        Raises:
            ValueError: there was none.
        """
        if self._program is None:
            raise ValueError("No program has run yet; call it first.")
        return self._program

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers as the tiles of the first replica hold them, by name.

        Raises:
            ValueError: nothing has run yet.
        """
        program, state = self.program, {}
        flat = {name: self._replicas[0].read(name) for name in program.variables if name.startswith("weights.")}
        for given, (variable, start) in self._places().items():
            if variable not in flat:
                flat[variable] = self._replicas[0].read(variable)
            elements = torch.from_numpy(np.asarray(start + elements_of(self._graph.values[self._graph.inputs[given]])))
            state[given.name] = flat[variable][elements]
        return state

    def _rehearse(self) -> tuple[list[UpdateGraph], list[list[float]]]:
        """The updates of a call and their numbers."""
        updates, numbers = [], []
        if self._rehearsal is not None and self._update is not None:
            for _ in range(self._options.device_iterations):
                update, needed = self._rehearsal.next(self._update.settings(self._num_updates))
                if update is None:
                    raise ValueError(
                        f"{type(self._update.optimizer).__name__} does other things to a whole parameter than to one "
                        "element of it, so its update cannot be foretold."
                    )
                updates.append(update)
                numbers.append(needed)
                self._num_updates += 1
        return updates, numbers

    def _program_of(self, graph: OpGraph, updates: Sequence[UpdateGraph]) -> Program:
        key = (id(graph), *map(id, updates))
        if key not in self._programs:
            options = self._options
            training = None if self._update is None else Training(
                members=self._update.members(),
                trained=self._runner.step.trained,
                updates=updates,
                scaling=self._update.capture_scaling(),
            )  # fmt: skip
            self._programs[key] = join(
                graph,
                self._runner.step.num_results,
                self._target,
                device_iterations=options.device_iterations,
                gradient_accumulation=options.gradient_accumulation,
                replicas=options.replication_factor,
                training=training,
            )
        return self._programs[key]

    def _run(self, graph: OpGraph, tensors: Sequence[Tensor], numbers: list[list[float]]) -> list[Tensor]:
        """Runs the program of one call on the machine, with the host's side of its streams."""
        options, replicas = self._options, len(self._replicas)
        mode = chosen_output_mode(options, trains=self._update is not None)
        results = micro_batches.Results(mode, options.output_period, options.steps_per_call)
        arguments = {str(given): graph.values[v] for given, v in graph.inputs_of(Role.ARGUMENT).items()}
        names = list(arguments)
        given = {(name, replica): itertools.count(replica, replicas) for name in names for replica in range(replicas)}
        updates = [iter(numbers) for _ in range(replicas)]
        arrived: list[dict[str, Tensor]] = [{} for _ in range(replicas)]
        finished = [0] * replicas
        outputs = [graph.values[v] for v in graph.outputs[: self._runner.step.num_results] if v is not None]
        streams = {f"result:s{value.storage}" for value in outputs}

        def host_in(stream: str, replica: int) -> Tensor:
            if stream not in names:
                return torch.tensor(next(updates[replica]), dtype=torch.float64)
            micro = micro_batches.micro_batch(tensors, next(given[stream, replica]), options.batch_factor)
            value = arguments[stream]
            numel = self.program.variables[f"s{value.storage}"].mapping.numel
            return in_storage_order(micro[names.index(stream)], value, numel)

        def host_out(stream: str, replica: int, values: Tensor) -> None:
            found = arrived[replica]
            found[stream] = values
            if len(found) == len(streams):
                if results.wants(finished[replica]):
                    made = [found[f"result:s{v.storage}"][torch.from_numpy(elements_of(v))] for v in outputs]
                    results.add(finished[replica], replica, made)
                found.clear()
                finished[replica] += 1

        with torch.no_grad():
            run_program(self.program, self._replicas, host_in, host_out)
        return results.join()

    def _state_of(self, replica: int) -> dict[str, Tensor]:
        """What a replica's variables hold at first: weights, buffers and the optimizer's state, flat."""
        own = self._runner.buffers[replica] if self._runner.buffers else {}
        tensors = self._runner.state() | {Input(Role.BUFFER, name): tensor for name, tensor in own.items()}
        sizes, state = storage_sizes(self._graph), {}
        for given, (variable, _) in self._places().items():
            if not variable.startswith("weights."):
                value = self._graph.values[self._graph.inputs[given]]
                state[variable] = in_storage_order(tensors[given], value, sizes[value.storage][0])
        updated = {} if self._update is None else tensors_of(self._update.worker())
        for given, tensor in updated.items():
            if given.role is Role.PARAMETER:
                state[f"weights.{given.name}"] = _in_memory_order(tensor)
            elif given.role is Role.STATE:
                state[str(given)] = _in_memory_order(tensor)
        return state

    def _places(self) -> dict[Input, tuple[str, int]]:
        """The variable of each parameter and buffer, and the element of it at which it starts."""
        graph, places = self._graph, {}
        for given, v in graph.inputs.items():
            if given.role is not Role.ARGUMENT:
                places[given] = f"s{graph.values[v].storage}", 0
        for number, members in enumerate(self._update.members() if self._update is not None else ()):
            start = 0
            for member in members:
                parameter = Input(Role.PARAMETER, member)
                places[parameter] = f"weights.{number}", start
                start += graph.values[graph.inputs[parameter]].numel
        return places


def _in_memory_order(tensor: Tensor) -> Tensor:
    return torch.as_strided(tensor.detach(), (tensor.numel(),), (1,), tensor.storage_offset()).clone()
