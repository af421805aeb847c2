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
from popgeo.capture.pytree import is_graph_data
from popgeo.engine import resume
from popgeo.engine.backend import Backend
from popgeo.engine.bind_step import bind_step
from popgeo.engine.bound_step import NOTHING_ON_A_GPU, BoundStep
from popgeo.engine.misuse import refuse_transforms
from popgeo.engine.model_watch import modes_now
from popgeo.engine.replicas import Replicas
from popgeo.engine.step_recipe import Recipe
from popgeo.filter_choice import parts_with_filters
from popgeo.plain_surroundings import plain_surroundings
from popgeo.progress import announced


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
        self._with_filters: list[Any] = []
        self._pending: Mapping[str, Any] | None = None  # a checkpoint that waits for the step to be compiled

    def for_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundStep:
        """The step as it runs a call: compiled if it is not, and with what has changed about the model taken up.

        Raises:
            ValueError: it trains, and gradients are switched off around the call; or `torch.func` transforms it.
        """
        refuse_transforms()
        if self.recipe.optimizer is not None and not torch.is_grad_enabled():
            raise ValueError(
                "A training step updates the weights in each call, also within torch.no_grad(), where loss.backward() "
                "fails. To evaluate, call popgeo.compile_forward(model.eval()), or popgeo.inference_model, which "
                "follow the weights; to train, call the step outside of no_grad() and inference_mode()."
            )
        bound = self.bound
        if bound is None:
            return self.compile(args, kwargs)
        for part in self._with_filters:
            part.follow_filters()
        given = () if bound.largest_graph is None else bound.flatten(args, kwargs)[0]
        if largest_graph.may_exceed(given, bound.largest_graph):
            self.forget(self.recipe.modes)
            return self.compile(args, kwargs)
        if bound.watch.is_as_seen():
            return bound
        bound.flatten(args, kwargs)  # which refuses other shapes, as in any call
        with ONE_AT_A_TIME:  # another thread may be capturing the same model
            for part in self._with_filters:
                part.follow_filters(may_be_replaced=True)
            if not bound.watch.changes():
                bound.follow_memory()  # weights that have only moved
                return bound
            self.forget(bound.watch.modes())
        return self.compile(args, kwargs)

    @plain_surroundings()
    def compile(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundStep:
        """Compiles the step for such arguments; rejected arguments change neither the model nor the optimizer."""
        refuse_transforms()
        self.recipe = replace(self.recipe, modes=modes_now(self.recipe.module, self.recipe.modes))
        replicas = self._replicas_here()
        if self._pending is not None:
            resume.require_replicas(self._pending, replicas)
        arguments = Arguments.of(self.recipe.signature, args, kwargs)
        self._with_filters = parts_with_filters(self.recipe.module)
        for part in self._with_filters:
            part.refine_filters()
        is_shown = None if self.recipe.options.show_progress else False
        line = f"popgeo: compiling {self.recipe.name} for its first call with these shapes"
        try:
            with announced(line, is_shown):
                bound = bind_step(self.recipe, arguments, replicas)
        except (TypeError, AttributeError) as error:
            given = [one for one in (*args, *kwargs.values()) if is_graph_data(one)]
            if not given:
                raise
            held = sorted(given[0].keys())
            wanted = [name for name in self.recipe.signature.parameters if name not in held][:1]
            raise ValueError(
                f"The model was given a {type(given[0]).__name__} and failed: {error}. The batch has no "
                f"{'attribute ' + wanted[0] if wanted else 'such attribute'}; it has {', '.join(held)}. If it takes "
                f"tensors, pass those of the batch, such as step(batch.x, batch.edge_index), by the names in "
                f"{self.recipe.signature}."
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
