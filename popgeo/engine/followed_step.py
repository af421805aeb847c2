"""The step of a recipe from call to call: compiled when it is first needed, and again when its model has changed."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from popgeo import largest_graph
from popgeo.capture.arguments import Arguments
from popgeo.capture.held_state import ONE_AT_A_TIME
from popgeo.engine import resume
from popgeo.engine.backend import Backend
from popgeo.engine.bind_step import bind_step
from popgeo.engine.bound_step import NOTHING_ON_A_GPU, BoundStep
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_recipe import Recipe
from popgeo.filter_choice import CHECKED_EVERY, refine_filters


class FollowedStep:
    """A step that follows its model, and whose run continues when it is compiled again; one thread at a time uses it.

    Args:
        recipe: The step to compile, and how.
        replicas: Which replicas run here; all of this process when left out.

    Attributes:
        recipe: As given, with what has been set since.
        bound: The step as it is compiled; None if it is not.
    """

    def __init__(self, recipe: Recipe, replicas: Replicas | None = None) -> None:
        self.recipe, self._replicas = recipe, replicas
        self.bound: BoundStep | None = None
        self._pending: Mapping[str, Any] | None = None  # a checkpoint that waits for the step to be compiled

    def for_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundStep:
        """The step as it runs a call: compiled if it is not, and with what has changed about the model taken up.

        Raises:
            ValueError: it trains, and gradients are switched off around the call.
        """
        if self.recipe.optimizer is not None and not torch.is_grad_enabled():
            raise ValueError(
                "A training step updates the weights in each call, also within torch.no_grad(), where loss.backward() "
                "fails. To evaluate, call popgeo.compile_forward(model.eval()), or popgeo.inference_model, which "
                "follow the weights; to train, call the step outside of no_grad() and inference_mode()."
            )
        bound = self.bound
        if bound is None:
            return self.compile(args, kwargs)
        if bound.calls and bound.calls % CHECKED_EVERY == 0:  # compiling has refined them
            refine_filters(self.recipe.module)
        given = () if bound.largest_graph is None else bound.flatten(args, kwargs)[0]
        if largest_graph.may_exceed(given, bound.largest_graph):
            self.forget(self.recipe.modes)
            return self.compile(args, kwargs)
        if bound.watch.is_as_seen():
            return bound
        bound.flatten(args, kwargs)  # which refuses other shapes, as in any call
        with ONE_AT_A_TIME:  # another thread may be capturing the same model
            if not bound.watch.changes():
                bound.follow_memory()  # weights that have only moved
                return bound
            self.forget(bound.watch.modes())
        return self.compile(args, kwargs)

    def compile(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundStep:
        """Compiles the step for such arguments; rejected arguments change neither the model nor the optimizer."""
        replicas = self._replicas_here()
        if self._pending is not None:
            resume.require_replicas(self._pending, replicas)
        arguments = Arguments.of(self.recipe.signature, args, kwargs)
        refine_filters(self.recipe.module)
        try:
            bound = bind_step(self.recipe, arguments, replicas)
        except TypeError as error:
            given = [type(one).__name__ for one in (*args, *kwargs.values()) if hasattr(one, "num_graphs")]
            if not given:
                raise
            raise ValueError(
                f"The model was given a {given[0]} and failed: {error}. If it takes tensors, pass those of the "
                f"batch, such as step(batch.x, batch.edge_index), by the names in {self.recipe.signature}."
            ) from error
        self._go_on(bound)
        self.bound = bound
        return bound

    def forget(self, modes: Mapping[nn.Module, bool]) -> None:
        """Forgets what was compiled; the next one continues with its random numbers, and counts on from its updates."""
        bound, self.bound = self.bound, None
        self.recipe = replace(self.recipe, modes=modes)
        if bound is not None and self._pending is None:
            self._pending = self.run_state(bound)

    def run_state(self, bound: BoundStep) -> dict[str, Any]:
        """What a step that is compiled later continues from."""
        return {"replicas": list(self._replicas_here().local), **bound.runner.run_state()}

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on from what a checkpoint holds, if it fits, now or once the step is compiled."""
        if self.recipe.backend is Backend.CUDA:
            raise ValueError(NOTHING_ON_A_GPU)
        content = resume.load_checkpoint(path)
        resume.require_replicas(content, self._replicas_here())
        resume.restore_weights(content, self.recipe.module, self.recipe.optimizer, path)
        self.continue_from(content)

    def continue_from(self, content: Mapping[str, Any]) -> None:
        """Continues with the random numbers and counts that a checkpoint holds, now or once the step is compiled."""
        resume.require_replicas(content, self._replicas_here())
        if self.recipe.options.random_seed is None:  # now, since the caller may draw before the step does
            resume.restore_torchs_generator(content)
        self._pending = content
        if self.bound is not None:
            self._go_on(self.bound)

    def reset_buffers(self) -> None:
        """Gives every replica the module's buffers, as they are now."""
        if self.bound is not None and self.recipe.backend is not Backend.CUDA:
            self.bound.on_processor.reset_buffers()
        elif self._pending is not None:
            self._pending = {**self._pending, "buffers": []}

    def _replicas_here(self) -> Replicas:
        """Those of this process, as they were dealt out or will be."""
        if self.bound is not None:
            return self.bound.on_processor.replicas
        return self._replicas or Replicas.of_this_process(self.recipe.options.replication_factor)

    def _go_on(self, bound: BoundStep) -> None:
        """Gives a compiled step the run that a checkpoint holds, if one was loaded."""
        if self._pending is not None:
            resume.restore_run(self._pending, bound.runner)
            self._pending = None
