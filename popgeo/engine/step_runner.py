"""Runs the micro-batches of a call in order: device iterations, accumulation, replicas, updates."""

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.held_state import module_state
from popgeo.capture.op_graph import LOSS_SCALE, Input, OpGraph, Role
from popgeo.capture.row_indexing import without_row_indexing
from popgeo.engine import micro_batches
from popgeo.engine.denormals import DenormalsFlushed
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.inductor import InductorRunner
from popgeo.engine.loss_scaling import LossScale
from popgeo.engine.optimizer.update import Update
from popgeo.engine.pipeline.parts import Part
from popgeo.engine.pipeline.run_round import RoundRunner
from popgeo.engine.pipeline.staging import Staging
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_options import StepOptions
from popgeo.engine.threads import ThreadChoice
from popgeo.engine.write_back import check_apart, write_back

Runner = GraphRunner | InductorRunner | RoundRunner


class StepRunner:
    """A captured step with its weights, the buffers of each replica and random numbers.

    Args:
        step: What to run.
        model: Owns parameters and buffers, which change in place.
        options: How often a call repeats the step.
        update: Applies gradients; None for inference.
        replicas: Which of the replicas run here.
        kind: What runs the graph of one micro-batch.
        staging: How the step is cut into stages; None runs it as a whole.

    Attributes:
        threads: With how many threads calls run.
    """

    def __init__(
        self,
        step: CapturedStep,
        model: nn.Module,
        options: StepOptions,
        update: Update | None,
        replicas: Replicas,
        kind: type[GraphRunner] | type[InductorRunner] = GraphRunner,
        staging: Staging | None = None,
    ) -> None:
        self._kind, self._staging = kind, staging
        self.step, self._model, self._options = step, model, options
        self._update, self.replicas = update, replicas
        self.threads = ThreadChoice(options.num_threads)
        self._mode = options.chosen_output_mode(trains=update is not None)
        arguments = step.graph.inputs_of(Role.ARGUMENT)
        self._row_indices = [position for position, given in enumerate(arguments) if given in step.row_indices]
        self._written = [position for position, given in enumerate(arguments) if given in step.written]
        seed = options.random_seed if options.random_seed is not None else torch.initial_seed()
        self.generators = [_generator(seed, replica) for replica in replicas.local]
        self.buffers = self._buffers_of_replicas()
        if update is not None:
            update.share_seed(replicas)
        self.bind()

    def bind(self) -> None:
        """Binds the step to the memory in which the weights are now."""
        if self._update is not None:
            self._update.take_over()
        self._usual: Runner | None = None
        self._careful: Runner | None = None
        self._addresses = self._addresses_now()

    @property
    def graph_runner(self) -> Runner:
        """Runs the step; its operations are joined and given their memory when it is first asked for."""
        if self._usual is None:
            self._usual = self._bound(self.step.graph)
        return self._usual

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results of one call, joined as the output mode says; arguments that the model changes are changed.

        Denormal numbers count as zeros meanwhile.

        Raises:
            ValueError: an argument that the model changes shares memory with another tensor of the step.
        """
        if self._written:
            check_apart([*tensors, *self.state().values()], self._written)
        if self._addresses != self._addresses_now():
            self.bind()
        with self.threads.of_a_call(), DenormalsFlushed():
            return self._run(tensors)

    def _run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        options, update = self._options, self._update
        graph_runner = self._graph_runner_for(tensors)
        factor, replicas = options.steps_per_call * len(self.replicas.local), len(self.replicas.local)
        results = micro_batches.Results(self._mode, options.output_period, options.steps_per_call)
        if isinstance(graph_runner, RoundRunner):
            self._run_rounds(graph_runner, tensors, results)
            return results.join()
        for step in range(options.steps_per_call):
            for replica in range(replicas):
                micro = micro_batches.micro_batch(tensors, step * replicas + replica, factor)
                made = self._run_replica(graph_runner, replica, micro)
                if results.wants(step):
                    results.add(step, replica, [t for t in made[: self.step.num_returned] if t is not None])
                write_back([micro[i] for i in self._written], made[self.step.num_returned :])
                if update is not None:
                    update.accumulate(first=replica == 0 and step % options.gradient_accumulation == 0)
            if update is not None and (step + 1) % options.gradient_accumulation == 0:
                self._apply(update)
        self._show_first_replica()
        return results.join()

    def _run_rounds(self, runner: RoundRunner, tensors: Sequence[Tensor], results: micro_batches.Results) -> None:
        """Runs the micro-batches of each round in stages."""
        options, update, replicas = self._options, self._update, len(self.replicas.local)
        length = options.gradient_accumulation if update is not None else options.device_iterations
        factor = options.steps_per_call * replicas
        for first in range(0, options.steps_per_call, length):
            inputs = [
                [micro_batches.micro_batch(tensors, step * replicas + replica, factor) for replica in range(replicas)]
                for step in range(first, first + length)
            ]

            def finish(
                number: int, replica: int, made: list[Tensor | None], first: int = first, given: Any = inputs
            ) -> None:
                if results.wants(first + number):
                    kept = [t for t in made[: self.step.num_returned] if t is not None]
                    results.add(first + number, replica, kept)
                written = [given[number][replica][i] for i in self._written]
                write_back(written, made[self.step.num_returned :])

            def accumulate(names: Sequence[str], first: bool) -> None:
                if update is not None:
                    update.accumulate(first=first, names=names)

            runner.run(inputs, self.generators, of_replica=self._buffers_of, on_gradients=accumulate, on_results=finish)
            if update is not None:
                self._apply(update)
        self._show_first_replica()

    def _apply(self, update: Update) -> None:
        """One update with the gradients of all processes, each of which hands on what it alone has updated."""
        self.replicas.add_up(update.shared_totals())
        update.apply(self.replicas)
        self.replicas.hand_on(update.divided())

    def reset_buffers(self) -> None:
        """Gives every replica the module's buffers."""
        self.buffers = self._buffers_of_replicas()

    def restore(self, generators: Sequence[Tensor], buffers: Sequence[dict[str, Tensor]]) -> None:
        """Takes random numbers and the buffers of each replica from a checkpoint."""
        for generator, state in zip(self.generators, generators, strict=True):
            generator.set_state(state)
        for mine, theirs in zip(self.buffers, buffers, strict=True):
            for name, tensor in mine.items():
                tensor.copy_(theirs[name])

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters and buffers, gradients and optimizer state, and of the buffers of further replicas."""
        held = [
            *self._model.parameters(),
            *self._model.buffers(),
            *(self._update.tensors() if self._update is not None else ()),
        ]
        held += [tensor for buffers in self.buffers[1:] for tensor in buffers.values()]
        return sum(tensor.nbytes for tensor in held)

    @property
    def joined(self) -> tuple[str, str]:
        """What runs as interactions in one pass, and why not all; and how many operations run in how many chains."""
        return self.graph_runner.joined()

    def parts_for(self, tensors: Sequence[Tensor]) -> list[Part]:
        """The parts in which these operations run, where they run in stages."""
        runner = self._graph_runner_for(tensors)
        return runner.parts if isinstance(runner, RoundRunner) else []

    @property
    def loss_scale(self) -> LossScale | None:
        """The scale of the loss, where it follows the gradients."""
        return None if self._update is None else self._update.scale

    def graph_for(self, tensors: Sequence[Tensor]) -> OpGraph:
        """The operations that run for these inputs."""
        return self._graph_runner_for(tensors).graph

    @contextlib.contextmanager
    def _buffers_of(self, replica: int) -> Iterator[None]:
        """Lets the module have the buffers of a replica for a while."""
        own = self.buffers[replica] if self.buffers else {}
        buffers = dict(self._model.named_buffers()) if own else {}
        for name, tensor in own.items():
            buffers[name].copy_(tensor)
        yield
        for name, tensor in own.items():
            tensor.copy_(buffers[name])

    def _run_replica(
        self, graph_runner: GraphRunner | InductorRunner, replica: int, micro: Sequence[Tensor]
    ) -> list[Tensor | None]:
        with self._buffers_of(replica):
            return self._run_drawing(graph_runner, replica, micro)

    def _run_drawing(
        self, graph_runner: GraphRunner | InductorRunner, replica: int, micro: Sequence[Tensor]
    ) -> list[Tensor | None]:
        if graph_runner.draws_random_numbers:
            # Not every operation takes a generator, so torch's own stands in for the replica's while it runs.
            before = torch.get_rng_state()
            torch.set_rng_state(self.generators[replica].get_state())
            made = graph_runner.run(micro)
            self.generators[replica].set_state(torch.get_rng_state())
            torch.set_rng_state(before)
            return made
        return graph_runner.run(micro)

    def _show_first_replica(self) -> None:
        """Gives the module the buffers of the first replica, once the results that may be buffers have been copied."""
        if self.buffers:
            buffers = dict(self._model.named_buffers())
            for name, tensor in self.buffers[0].items():
                buffers[name].copy_(tensor)

    def _bound(self, graph: OpGraph) -> Runner:
        places, state = {}, module_state(self._model)
        if self._update is not None:
            if self._update.scale is not None:
                state[LOSS_SCALE] = self._update.scale.tensor
            names = enumerate(self.step.trained, start=self.step.num_results)
            places = {position: self._update.gradients[name] for position, name in names}
        collects = gc.isenabled()
        gc.disable()  # a graph is many small objects without a circle, of which the collector would look at each
        try:
            if self._staging is not None:
                update, checks = self._update, self._options.floating_point_exceptions
                gradients = {} if update is None else {name: update.gradients[name] for name in self.step.trained}
                return RoundRunner(graph, self._staging, state, self.step.num_results, gradients, checks)
            return self._kind(graph, state, places, self._options.floating_point_exceptions)
        finally:
            if collects:
                gc.enable()

    def _graph_runner_for(self, tensors: Sequence[Tensor]) -> Runner:
        if not any(tensors[i].numel() and int(tensors[i].min()) < 0 for i in self._row_indices):
            return self.graph_runner
        if self._careful is None:
            self._careful = self._bound(without_row_indexing(self.step.graph, self.step.row_indices))
        return self._careful

    def state(self) -> dict[Input, Tensor]:
        """Parameters and buffers, as the graph names them."""
        return module_state(self._model)

    def _addresses_now(self) -> list[int]:
        named = (*self._model.named_parameters(), *self._model.named_buffers())
        return [tensor.data_ptr() for _, tensor in named]

    def _buffers_of_replicas(self) -> list[dict[str, Tensor]]:
        """Copies of the buffers that the step changes, where there are several replicas to keep apart."""
        if len(self.replicas.local) == 1:
            return []
        graph = self.step.graph
        mutated = graph.mutated_storages()
        names = [given.name for given, v in graph.inputs_of(Role.BUFFER).items() if graph.values[v].storage in mutated]
        buffers = dict(self._model.named_buffers())
        return [{name: buffers[name].clone() for name in names} for _ in self.replicas.local] if names else []


def _generator(seed: int, replica: int) -> torch.Generator:
    """Replica 0 draws what PyTorch draws after `torch.manual_seed(seed)`; the others have streams of their own."""
    if replica:
        words = np.random.SeedSequence(seed % 2**64, spawn_key=(replica,)).generate_state(1, np.uint64)
        seed = int(words[0] >> np.uint64(1))
    return torch.Generator().manual_seed(seed)
