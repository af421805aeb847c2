"""Joins forward, backward and update into the program of one call of a compiled model."""

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
    """Repeat(device iterations) { Repeat(accumulation) { host in, step, host out }, all-reduce, update }.

    Args:
        joiner: The step, and how a micro-batch of it runs.
        device_iterations: Runs of a call, each with an update when training.
        gradient_accumulation: Micro-batches of an update.
        replicas: Copies of the model that add up their gradients.

    Returns:
        A program with the variables `weights.<i>`, `gradients.<i>` and `state:<i>.<key>` for the i-th joined weight
        tensor, and `s<number>` for each other storage of the step. Iterations that update alike share a `Repeat`.
    """
    if joiner.training is None:
        with joiner.builder.repeat(device_iterations, "device iterations"):
            joiner.iteration_steps(accumulates=False)
        return joiner.finish()
    for _, alike in itertools.groupby(joiner.training.updates, key=id):
        updates = list(alike)
        with joiner.builder.repeat(len(updates), "device iterations"):
            joiner.iteration(updates[0], gradient_accumulation, replicas)
    return joiner.finish()


class Joiner:
    """A joined program in the making.

    Args:
        graph: The captured step.
        num_results: How many of its outputs the host receives.
        target: The machine; a small one, since the steps list every vertex and transfer.
        training: What happens to gradients; None for inference.
        homes: Where parameters and buffers lie, by storage, in a program whose other variables are declared later.

    Attributes:
        builder: Takes the steps.
        training: As given.
    """

    def __init__(
        self,
        graph: OpGraph,
        num_results: int,
        target: IpuTarget,
        training: Training | None,
        homes: Mapping[int, TileMapping] | None = None,
    ) -> None:
        self.builder = Builder(target.num_tiles * target.num_ipus)
        self._graph, self._num_results, self._target, self.training = graph, num_results, target, training
        self._plans = plan_all(graph, Machine(target=target)) if homes is None else []
        self._updates = 0
        self._optimizer_state: dict[Input, None] = {}  # of the optimizer, in order
        mappings = map_storages(graph, self._plans, self.builder.num_tiles) if homes is None else homes
        self._sums: dict[str, Region] = {}
        weights: Places = {}
        for number, names in enumerate(training.members if training is not None else ()):
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
        """The type in which an update takes the joined gradient of a weight tensor."""
        assert self.training is not None
        graph = self.training.updates[0].graph
        v = graph.inputs.get(Input(Role.GRADIENT, f"{number}"))
        return weights if v is None else graph.values[v].dtype

    def finish(self) -> CallProgram:
        """The program, and where what the host knows is in it."""
        places = self.input_places() | {given: self._whole(str(given)) for given in self._optimizer_state}
        return CallProgram(program=finish(self.builder), places=places, results=self.result_places())

    def input_places(self) -> dict[Input, Region]:
        """Where the host finds each input of the step."""
        return {given: self._region(v) for given, v in self._graph.inputs.items()}

    def result_places(self) -> tuple[tuple[str, np.ndarray], ...]:
        """The stream of each result, and which of its elements it is."""
        return tuple((f"result:{region.variable}", region.elements) for region in self._results())

    def micro_batch(self) -> None:
        """Inputs, forward and backward, results."""
        graph = self._graph
        streams = {self._region(v).variable: str(given) for given, v in graph.inputs_of(Role.ARGUMENT).items()}
        self.builder.steps.append(HostCopy(to_host=False, streams=streams))
        add_operations(self.builder, graph, self._plans, self._places)
        streams = {region.variable: f"result:{region.variable}" for region in self._results()}
        self.builder.steps.append(HostCopy(to_host=True, streams=streams))

    def iteration_steps(self, accumulates: bool, accumulation: int = 1) -> None:
        """The micro-batches of an update, with the sums of their gradients when training."""
        several = self.builder.repeat(accumulation, "gradient accumulation") if accumulates else nullcontext()
        with several:
            self.micro_batch()
            if self.training is not None:
                self._collect(accumulates)

    def iteration(self, update: UpdateGraph, accumulation: int, replicas: int) -> None:
        """Micro-batches, sums of gradients, and the update."""
        assert self.training is not None
        totals = [f"gradients.{number}" for number in range(len(self.training.members))]
        if accumulation > 1:
            for name in totals:
                fill(self._scope("clear gradients"), self._whole(name), 0)
        self.iteration_steps(accumulation > 1, accumulation)
        if replicas > 1:
            self.builder.steps.append(AllReduce(variables=tuple(totals), replicas=replicas))
        places = {Input(Role.GRADIENT, f"{number}"): name for number, name in enumerate(totals)}
        if self.training.scaling is not None:
            self._add(self.training.scaling, places)
        self._update(update, places)

    def _collect(self, accumulates: bool) -> None:
        for name, v in zip(self._trained(), self._graph.outputs[self._num_results :], strict=True):
            if v is not None:
                self._collect_one(name, self._region(v), accumulates)

    def _trained(self) -> Sequence[str]:
        return () if self.training is None else self.training.trained

    def _collect_one(self, name: str, found: Region, accumulates: bool) -> None:
        """Gives the gradient of a parameter to its sum."""
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
        if count := update.num_numbers:  # that the host works out for this update; every tile gets a copy
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
        """The steps of a graph whose inputs are variables that there are already."""
        places: Places = {graph.values[v].storage: (given[one], 0) for one, v in graph.inputs.items()}
        self._updates += 1
        plans = plan_all(graph, Machine(target=self._target))
        return add_graph(self.builder, graph, plans, places, f"u{self._updates}.")

    def _results(self) -> list[Region]:
        """What the host receives of a micro-batch."""
        return [self._region(v) for v in self._graph.outputs[: self._num_results] if v is not None]

    def _region(self, v: int) -> Region:
        """Where a value of the step is."""
        return region_of(self._graph, self._places, v)

    def _scope(self, label: str) -> Scope:
        return Scope(self.builder, self._graph, self._places, label, Plan(family="movement"))

    def _whole(self, name: str) -> Region:
        return Region(variable=name, elements=np.arange(self.builder.variables[name].mapping.numel))


def _in_storage_order(elements: np.ndarray, stride: Sequence[int]) -> np.ndarray:
    """The elements of a gradient in the order in which its parameter's lie in memory."""
    order = sorted(range(elements.ndim), key=lambda d: -stride[d])
    return elements.transpose(order).ravel()
