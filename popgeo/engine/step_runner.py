"""Runs the micro-batches of a call in order: device iterations, accumulation steps, replicas, updates."""

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from popgeo.capture.captured_step import CapturedStep
from popgeo.capture.drawn_numbers import SET_STATE
from popgeo.capture.held_state import ONE_AT_A_TIME, held_storages, module_state
from popgeo.capture.op_graph import LOSS_SCALE, Input, OpGraph, Role
from popgeo.capture.passes import without_row_indexing
from popgeo.engine.backend import Backend
from popgeo.engine.denormals import DenormalFlushing
from popgeo.engine.gradient_accumulation import CallResults, check_apart, micro_batch, write_back
from popgeo.engine.graph_runner import GraphRunner
from popgeo.engine.inductor import InductorRunner
from popgeo.engine.loss_scaling import LossScale
from popgeo.engine.optimizer.update import Update
from popgeo.engine.pipeline.random_draws import drawing_from
from popgeo.engine.pipeline.run_round import RoundRunner
from popgeo.engine.pipeline.staging import StagePart, Staging
from popgeo.engine.replicas import Replicas, ReplicaState
from popgeo.engine.step_options import StepOptions
from popgeo.engine.threads import ThreadChoice
from popgeo.plain_surroundings import plain_surroundings

_NOTHING_LENT = contextlib.nullcontext()
Runner = GraphRunner | InductorRunner | RoundRunner


class StepRunner:
    """A captured step with its weights, the buffers of each replica and random numbers.

    Args:
        model: The model; its parameters and buffers change in place.
        options: The number of repetitions of the step in a call, the results to return, and other choices.
        backend: The backend that runs one micro-batch.
        step: The captured operations of one micro-batch.
        update: The optimizer's update; None for a forward pass.
        replicas: The replicas that run in this process.
        staging: The cut of the step into stages. Default: the step runs as a whole.
        is_padded: Whether the last node of a batch is padding.
        average: A moving average of the weights, which each update brings up to date. Default: none.

    Attributes:
        update: See the argument.
        replicas: See the argument.
        replica_states: Random numbers and buffers of each replica.
        threads: The number of threads of each call.
    """

    def __init__(
        self,
        model: nn.Module,
        options: StepOptions,
        backend: Backend,
        step: CapturedStep,
        update: Update | None,
        replicas: Replicas,
        staging: Staging | None = None,
        is_padded: bool = False,
        average: AveragedModel | None = None,
    ) -> None:
        self._model, self._options, self._backend, self._staging = model, options, backend, staging
        self._is_padded, self._average = is_padded, average
        self._step = step if staging is None else step.expanded
        self.update, self.replicas = update, replicas
        self.threads = ThreadChoice(options.num_threads)
        self._mode = options.chosen_output_mode(trains=update is not None)
        # Micro-batches of each replica in a call, and between two updates; a forward pass has one round.
        self._num_steps = options.steps_per_call
        self._round = self._num_steps if update is None else options.gradient_accumulation
        arguments = step.graph.inputs_of(Role.ARGUMENT)
        self._row_indices = [position for position, given in enumerate(arguments) if given in step.row_indices]
        self._written = [position for position, given in enumerate(arguments) if given in step.written]
        self.replica_states = [ReplicaState.of(replica, options.random_seed) for replica in replicas.local]
        self._seed_in_use: int | None = torch.initial_seed()
        seeds_itself = any(op.target == SET_STATE for op in step.graph.ops)
        has_own_streams = not all(state.draws_as_torch for state in self.replica_states)
        self._follows_seed = has_own_streams and options.random_seed is None and not seeds_itself
        self.reset_buffers()
        if update is not None:
            update.share_seed(replicas)
        self.bind()

    def bind(self) -> None:
        """Bind the step to the present memory of the weights."""
        if self.update is not None:
            self.update.follow_memory()
        self._usual: Runner | None = None
        self._careful: Runner | None = None

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run one call and return its results, joined according to the output mode.

        Arguments that the model changes in place are changed. Denormal numbers count as zeros during the call.

        Raises:
            ValueError: an argument that the model changes shares memory with another tensor of the step.
        """
        if self._written:
            check_apart([*tensors, *module_state(self._model).values()], self._written)
        flushed, threads, differentiates = DenormalFlushing(), torch.get_num_threads(), torch.is_grad_enabled()
        try:
            with self.threads, flushed:
                return self._run(tensors)
        except BaseException:  # an interrupt may have stopped the end of a `with` block before it restored the state
            flushed.end()
            torch.set_num_threads(threads)
            torch._C._set_grad_enabled(differentiates)
            raise

    def _run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        runner, factor = self._runner_for(tensors), self._num_steps * len(self.replica_states)
        if runner.draws_random_numbers and self._follows_seed:
            self._follow_seed()
        # Replica by replica within each step.
        inputs = [tensors] if factor == 1 else [micro_batch(tensors, number, factor) for number in range(factor)]
        results = CallResults(self._mode, self._options.output_period, self._num_steps)
        run_round = self._run_stages if isinstance(runner, RoundRunner) else self._run_round
        try:
            for first in range(0, self._num_steps, self._round):
                run_round(runner, inputs, results, first)
                if self.update is not None:
                    self.update.apply(self.replicas)
                if self._average is not None:
                    self._average.update_parameters(self._model)
        finally:
            if self.replica_states[0].buffers:  # after results that may be buffers were copied
                self.replica_states[0].show(self._model)
        return results.join()

    def _follow_seed(self) -> None:
        """Restart the random streams of the replicas if `torch.manual_seed` was called since the last call.

        A generator from which nothing was drawn since it was seeded shows such a call. If no replica draws from torch's
        own generator, this draws one number from it, so that a later call of `manual_seed` is visible too.
        """
        own = torch.default_generator
        seed = own.initial_seed()
        if torch.equal(own.get_state(), torch.Generator().manual_seed(seed).get_state()):
            for replica, state in zip(self.replicas.local, self.replica_states, strict=True):
                if seed != self._seed_in_use and not state.draws_as_torch:
                    state.generator.set_state(ReplicaState.of(replica, seed).generator.get_state())
            self._seed_in_use = None
            if not self.replica_states[0].draws_as_torch:
                torch.rand(())

    def _run_round(self, runner: Any, inputs: Sequence[Sequence[Tensor]], results: CallResults, first: int) -> None:
        """Run the micro-batches up to the next update, one after the other.

        Args:
            runner: Runs one micro-batch.
            inputs: The tensors of each micro-batch of the call, replica by replica within each step.
            results: Collects the results of the call.
            first: The number of the round's first step within the call.
        """
        states = self.replica_states
        for number in range(first, first + self._round):
            for replica, state in enumerate(states):
                given = inputs[number * len(states) + replica]
                with state.lent_to(self._model) if state.buffers else _NOTHING_LENT:
                    if runner.draws_random_numbers:
                        again = partial(self._run_in_order, runner.graph)
                        made = drawing_from(state.generator, runner.run, given, as_eager=again)
                    else:
                        made = runner.run(given)
                self._keep(results, given, number, replica, made)
                if self.update is not None:
                    self.update.accumulate(first=number == first and replica == 0, replicas=self.replicas)

    def _run_stages(self, runner: Any, inputs: Sequence[Sequence[Tensor]], results: CallResults, first: int) -> None:
        """Run the micro-batches up to the next update in the order of the stages; see `_run_round`."""
        count, states = len(self.replica_states), self.replica_states

        def take(number: int, replica: int, made: Sequence[Tensor | None]) -> None:
            step = first + number
            self._keep(results, inputs[step * count + replica], step, replica, made)

        steps = range(first, first + self._round)
        with ONE_AT_A_TIME if runner.draws_random_numbers else contextlib.nullcontext():
            runner.run(
                [inputs[step * count : (step + 1) * count] for step in steps],
                [state.generator for state in states],
                on_results=take,
                on_gradients=None if self.update is None else partial(self.update.accumulate, replicas=self.replicas),
                of_replica=lambda replica: states[replica].lent_to(self._model),
            )

    def _keep(
        self, results: CallResults, given: Sequence[Tensor], step: int, replica: int, made: Sequence[Tensor | None]
    ) -> None:
        """Keep the results of a micro-batch, and write changed arguments back to the caller's tensors."""
        returned = self._step.num_returned
        if results.wants(step):
            results.add(step, replica, [tensor for tensor in made[:returned] if tensor is not None])
        if self._written:
            write_back([given[i] for i in self._written], made[returned:])

    def _run_in_order(self, graph: OpGraph, given: Sequence[Tensor]) -> None:
        """Run a micro-batch in the order of eager code, on copies of weights and buffers."""
        state = {one: tensor.detach().clone() for one, tensor in self._state().items()}
        GraphRunner(graph, state, joins=False, in_order=self._options.batch_invariant).run(given)

    def reset_buffers(self) -> None:
        """Copy the module's buffers to every replica; a single replica uses the module's own buffers."""
        if len(self.replica_states) == 1:
            return
        graph = self._step.graph
        mutated = graph.mutated_storages()
        names = [given.name for given, v in graph.inputs_of(Role.BUFFER).items() if graph.values[v].storage in mutated]
        for state in self.replica_states:
            state.copy_buffers(self._model, names)

    def run_state(self) -> dict[str, Any]:
        """Return random numbers, buffers and the count of updates of the replicas in this process."""
        return {
            **({} if self.update is None else self.update.state()),
            "buffers": [state.buffers for state in self.replica_states if state.buffers],
            "generators": [state.generator.get_state() for state in self.replica_states],
            "replicas": list(self.replicas.local),
        }

    def restore(self, content: Mapping[str, Any]) -> None:
        """Continue from the result of `run_state`."""
        buffers = content["buffers"] or [{} for _ in self.replica_states]
        for state, generator, own in zip(self.replica_states, content["generators"], buffers, strict=True):
            state.restore(generator, own, self._model)
        self._seed_in_use = torch.initial_seed()  # a seed set before belongs to the previous run
        if self.update is not None and "num_updates" in content:
            self.update.restore(content)

    @property
    def state_bytes(self) -> int:
        """Bytes of parameters, buffers, gradients and optimizer state, and of the buffers of further replicas."""
        held = [*self._model.parameters(), *self._model.buffers()]
        held += [] if self.update is None else self.update.tensors()
        held += [tensor for state in self.replica_states[1:] for tensor in state.buffers.values()]
        return sum(tensor.nbytes for tensor in held)

    def how_it_runs(self) -> str:
        """Return a text: the loss scale, the fused operations and the number of threads."""
        picked = self.threads.picked
        threads = "" if picked is None else f"{picked} thread{'s' if picked > 1 else ''}"
        scale = "" if self.loss_scale is None else str(self.loss_scale)
        return ", ".join(part for part in (scale, *self.usual.describe(), threads) if part)

    def listing(self) -> str:
        """Return a text: the calls of a micro-batch, the operations that run in torch, and how weights are updated."""
        return self.usual.listing() if self.update is None else f"{self.usual.listing()}\n{self.update.listing()}"

    @property
    def loss_scale(self) -> LossScale | None:
        """The dynamic scale of the loss; None if it is constant."""
        return None if self.update is None else self.update.scale

    @property
    def usual(self) -> Runner:
        """The runner of the captured operations; its first access fuses them and allocates memory."""
        if self._usual is None:
            self._usual = self._bound(self._step.graph)
        return self._usual

    def program_for(self, tensors: Sequence[Tensor]) -> tuple[OpGraph, list[StagePart]]:
        """Return the operations that run for these inputs, and their parts; no parts if the step runs as a whole."""
        runner = self._runner_for(tensors)
        return runner.graph, runner.parts if isinstance(runner, RoundRunner) else []

    def _runner_for(self, tensors: Sequence[Tensor]) -> Runner:
        """Return the runner for these inputs; negative row numbers need operations that count them from the end."""
        given = [tensors[i] for i in self._row_indices]
        if not given or not any(tensor.numel() and int(tensor.min()) < 0 for tensor in given):
            return self.usual
        if self._careful is None:
            self._careful = self._bound(without_row_indexing(self._step.graph, self._step.row_indices))
        return self._careful

    def _state(self) -> dict[Input, Tensor]:
        """Return the graph's inputs that are not arguments: parameters, buffers and the loss scale."""
        scale = {} if self.loss_scale is None else {LOSS_SCALE: self.loss_scale.tensor}
        return {**module_state(self._model), **scale}

    @plain_surroundings()
    def _bound(self, graph: OpGraph) -> Runner:
        state, gradients, checks = self._state(), {}, self._options.floating_point_exceptions
        in_order = self._options.batch_invariant
        if self.update is not None:
            gradients = {name: self.update.gradients[name] for name in self._step.trained}
        if self._staging is not None:
            return RoundRunner(graph, self._staging, state, self._step.num_results, gradients, checks, in_order)
        places = dict(enumerate(gradients.values(), start=self._step.num_results))
        if self._backend is Backend.INDUCTOR:
            return InductorRunner(graph, state, places)
        return GraphRunner(
            graph,
            state,
            places,
            checks,
            self.update is None,
            follows_inputs=True,
            in_order=in_order,
            is_padded=self._is_padded,
            held=held_storages(self._model),
        )
