"""Joins forward pass, backward pass and update into the program of one call of a compiled model."""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import torch

from popgeo.capture.op_graph import Input, OpGraph, Role
from popgeo.engine.optimizer.capture_update import UpdateGraph
from popgeo.ipu.cost.calibration import Machine
from popgeo.ipu.cost.graph_cost import plan_all
from popgeo.ipu.cost.plan import Plan
from popgeo.ipu.target import IpuTarget
from popgeo.ipu.tiles.graph_program import add_graph, add_operations, declare, finish
from popgeo.ipu.tiles.lower.builder import Builder, Places, Scope, part, region_of
from popgeo.ipu.tiles.lower.elementwise import NUMBERS, add
from popgeo.ipu.tiles.lower.movement import copy, fill
from popgeo.ipu.tiles.map_tensors import map_storages
from popgeo.ipu.tiles.program import CallProgram, Training
from popgeo.ipu.tiles.steps import AllReduce, HostCopy, Region
from popgeo.ipu.tiles.tile_mapping import TileMapping, concatenated, linear


def join(joiner: "Joiner", device_iterations: int, gradient_accumulation: int, replicas: int) -> CallProgram:
    """Return Repeat(device iterations) { Repeat(accumulation) { host in, step, host out }, all-reduce, update }.

    Args:
        joiner: The step with the program of a micro-batch.
        device_iterations: Number of runs in a call, each with an update when training.
        gradient_accumulation: Number of micro-batches of an update.
        replicas: Number of copies of the model that add up their gradients.

    Returns:
        A program with the variables `weights.<i>`, `gradients.<i>` and `state:<i>.<key>` for the i-th joined weight
        tensor, and `s<number>` for each other storage of the step. Iterations that update alike share a `Repeat`.
    """
    if not joiner.training.updates:
        with joiner.builder.repeat(device_iterations, "device iterations"):
            joiner.iteration_steps()
        return joiner.finish()
    for _, alike in itertools.groupby(joiner.training.updates, key=id):
        updates = list(alike)
        with joiner.builder.repeat(len(updates), "device iterations"):
            joiner.iteration(updates[0], gradient_accumulation, replicas)
    return joiner.finish()


class Joiner:
    """A builder of the joined program of a step.

    Args:
        graph: The captured step.
        num_results: Number of its outputs that the host receives.
        target: The machine; a small one, since the steps list every vertex and transfer.
        training: Joined weights, updates and scaling; without updates for inference.
        homes: Mappings of parameters and buffers by storage, if a subclass declares all other variables. Default: all
            storages are mapped by the plans of the operations.

    Attributes:
        builder: The builder that collects the steps.
        training: Joined weights, updates and scaling.
    """

    def __init__(
        self,
        graph: OpGraph,
        num_results: int,
        target: IpuTarget,
        training: Training,
        homes: Mapping[int, TileMapping] | None = None,
    ) -> None:
        self.builder = Builder(target.num_tiles * target.num_ipus)
        self._graph, self._num_results, self._target, self.training = graph, num_results, target, training
        self._plans = plan_all(graph, Machine(target=target)) if homes is None else []
        self._updates = 0
        self._optimizer_state: dict[Input, None] = {}  # in order
        mappings = map_storages(graph, self._plans, self.builder.num_tiles) if homes is None else homes
        self._sums: dict[str, Region] = {}
        weights: Places = {}
        for number, names in enumerate(training.members):
            members = [graph.values[graph.inputs[Input(Role.PARAMETER, name)]] for name in names]
            storages = [member.storage for member in members]
            whole = concatenated([mappings[storage] for storage in storages])
            dtype = members[0].dtype
            self.builder.declare(f"weights.{number}", dtype, whole, lasting=True)
            kind = self._gradient_type(number, dtype)
            gradient = self.builder.declare(f"gradients.{number}", kind, whole, lasting=True)
            start = 0
            for name, storage in zip(names, storages, strict=True):
                size = mappings[storage].numel
                weights[storage] = f"weights.{number}", start
                self._sums[name] = part(gradient, slice(start, start + size))
                start += size
        own = {storage: mapping for storage, mapping in mappings.items() if storage not in weights}
        self._places = declare(self.builder, graph, own, "s") | weights

    def _gradient_type(self, number: int, weights: torch.dtype) -> torch.dtype:
        """Return the type of the joined gradient of a weight tensor in an update."""
        graph = self.training.updates[0].graph
        v = graph.inputs.get(Input(Role.GRADIENT, f"{number}"))
        return weights if v is None else graph.values[v].dtype

    def finish(self) -> CallProgram:
        """Return the program, with the places of inputs, optimizer state and results."""
        places = self.input_places() | {given: self._whole(str(given)) for given in self._optimizer_state}
        return CallProgram(program=finish(self.builder), places=places, results=self.result_places())

    def input_places(self) -> dict[Input, Region]:
        """Return the place of each input of the step."""
        return {given: self._region(v) for given, v in self._graph.inputs.items()}

    def result_places(self) -> tuple[tuple[str, np.ndarray], ...]:
        """Return the stream of each result, and the elements of the result in the stream."""
        return tuple((f"result:{region.variable}", region.elements) for region in self._results())

    def micro_batch(self) -> None:
        """Add inputs, forward and backward pass, and results of a micro-batch."""
        graph = self._graph
        streams = {self._region(v).variable: str(given) for given, v in graph.inputs_of(Role.ARGUMENT).items()}
        self.builder.steps.append(HostCopy(to_host=False, streams=streams))
        add_operations(self.builder, graph, self._plans, self._places)
        streams = {region.variable: f"result:{region.variable}" for region in self._results()}
        self.builder.steps.append(HostCopy(to_host=True, streams=streams))

    def iteration_steps(self, accumulation: int = 1) -> None:
        """Add the micro-batches of an update, with the sums of their gradients when training."""
        accumulates = accumulation > 1
        with self.builder.repeat(accumulation, "gradient accumulation") if accumulates else nullcontext():
            self.micro_batch()
            if self.training.updates:
                self._collect(accumulates)

    def iteration(self, update: UpdateGraph, accumulation: int, replicas: int) -> None:
        """Add micro-batches, sums of gradients, and the update."""
        totals = [f"gradients.{number}" for number in range(len(self.training.members))]
        if accumulation > 1:
            for name in totals:
                fill(self._scope("clear gradients"), self._whole(name), 0)
        self.iteration_steps(accumulation)
        if replicas > 1:
            self.builder.steps.append(AllReduce(variables=tuple(totals), replicas=replicas))
        places = {Input(Role.GRADIENT, f"{number}"): name for number, name in enumerate(totals)}
        if self.training.scaling is not None:
            self._add(self.training.scaling, places)
        self._update(update, places)

    def _collect(self, accumulates: bool) -> None:
        """Add the gradients of all parameters to their sums."""
        for name, v in zip(self.training.trained, self._graph.outputs[self._num_results :], strict=True):
            if v is not None:
                self._collect_one(name, self._region(v), accumulates)

    def _collect_one(self, name: str, found: Region, accumulates: bool) -> None:
        """Add the gradient of a parameter to its sum, or copy it there."""
        stride = self._graph.values[self._graph.inputs[Input(Role.PARAMETER, name)]].stride
        gradient = Region(variable=found.variable, elements=_in_storage_order(found.elements, stride))
        scope, total = self._scope("collect gradients"), self._sums[name]
        widens = self.builder.dtype(total) is not self.builder.dtype(gradient)
        if widens and not accumulates:
            fill(scope, total, 0)
        if widens or accumulates:
            add(scope, total, total, gradient)
        else:
            copy(scope, total, gradient)

    def _update(self, update: UpdateGraph, places: Mapping[Input, str]) -> None:
        """Add the update of all joined weights."""
        graph = update.graph
        known = dict(places) | {Input(Role.PARAMETER, f"{n}"): f"weights.{n}" for n in range(len(places))}
        mappings = self.builder.variables
        for (state, number), v in zip(update.state.items(), graph.outputs, strict=True):
            assert v is not None
            known[state] = str(state)
            self._optimizer_state[state] = None
            if known[state] not in self.builder.variables:
                value = graph.values[v]
                weights = mappings[f"weights.{number}"].mapping
                alike = weights if value.numel == weights.numel else linear(value.numel, num_tiles=1, grain=1)
                self.builder.declare(known[state], value.dtype, alike, lasting=True)
        if count := update.num_numbers:  # the host computes them for this update; every tile gets a copy
            name = f"{NUMBERS}.{count}"
            if name not in mappings:
                mapping = TileMapping(starts=np.array([0]), tiles=np.array([0], np.int32), numel=count, replicated=True)
                self.builder.declare(name, torch.float64, mapping)
            self.builder.numbers = name
            self.builder.steps.append(HostCopy(to_host=False, streams={name: NUMBERS}))
        made = self._add(graph, known)
        for name, v in zip(map(str, update.state), graph.outputs, strict=True):
            assert v is not None
            if made[graph.values[v].storage][0] != name:
                found = region_of(graph, made, v)
                in_memory_order = Region(variable=found.variable, elements=np.sort(found.elements.ravel()))
                copy(self._scope("keep state"), self._whole(name), in_memory_order)

    def _add(self, graph: OpGraph, given: Mapping[Input, str]) -> Places:
        """Add the steps of a graph; its inputs are declared variables."""
        places: Places = {graph.values[v].storage: (given[one], 0) for one, v in graph.inputs.items()}
        self._updates += 1
        plans = plan_all(graph, Machine(target=self._target))
        return add_graph(self.builder, graph, plans, places, f"u{self._updates}.")

    def _results(self) -> list[Region]:
        """Return the regions that the host receives after a micro-batch."""
        return [self._region(v) for v in self._graph.outputs[: self._num_results] if v is not None]

    def _region(self, v: int) -> Region:
        """Return the place of a value of the step."""
        return region_of(self._graph, self._places, v)

    def _scope(self, label: str) -> Scope:
        """Return a scope for steps that belong to no operation."""
        return Scope(self.builder, self._graph, self._places, label, Plan(family="movement"))

    def _whole(self, name: str) -> Region:
        """Return all elements of a variable."""
        return Region(variable=name, elements=np.arange(self.builder.variables[name].mapping.numel))


def _in_storage_order(elements: np.ndarray, stride: Sequence[int]) -> np.ndarray:
    """Return the elements of a gradient in the memory order of its parameter."""
    order = sorted(range(elements.ndim), key=lambda d: -stride[d])
    return elements.transpose(order).ravel()
