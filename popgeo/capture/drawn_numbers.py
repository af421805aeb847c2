"""Random numbers of a captured function: a compiled step draws them at the same places and from the same states."""

import contextlib
import inspect
import operator
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from popgeo.capture.arguments import Arguments
from popgeo.capture.outside_values import outer_variables
from popgeo.capture.pytree import unflatten
from popgeo.capture.recorder import Recorder

STATE, SET_STATE = "popgeo.random_state.default", "popgeo.set_random_state.default"
_DRAWS = torch.Tag.nondeterministic_seeded
_number = operator.attrgetter("_cdata")  # equal for two objects of one generator
_FIRST_MARK = 0x5EED0000_70706765  # a seed that no user chooses


# Torch forgets an operation that no variable refers to.
_get = torch.library.custom_op("popgeo::random_state", torch.get_rng_state, mutates_args=(), tags=(_DRAWS,))
_set = torch.library.custom_op("popgeo::set_random_state", torch.set_rng_state, mutates_args=(), tags=(_DRAWS,))


@contextlib.contextmanager
def drawn_numbers(function: Callable[..., Any], arguments: Arguments, recorder: Recorder) -> Iterator["DrawnNumbers"]:
    """Follow the random numbers of a function while the block captures it; restore all generators afterwards.

    Args:
        function: The function.
        arguments: Arguments of the call.
        recorder: Recorder of the function.

    Raises:
        ValueError: the function draws numbers in a way that a step cannot repeat.
    """
    held = _generators(function, arguments)
    states = [(generator, generator.get_state()) for generator in (torch.default_generator, *held)]
    others, of_numpy = _states_of_others(), np.random.get_state()  # noqa: NPY002
    try:
        drawn = DrawnNumbers(recorder, held)
        recorder.on_result = drawn.follow
        yield drawn
        drawn.check_others()
        if others != _states_of_others():
            raise ValueError(
                "The model draws from Python's random or from numpy.random while it runs; a compiled step would do "
                "that only once. Draw with torch.rand or torch.randint, or pass the numbers as an argument."
            )
    finally:
        random.setstate(others[0])
        np.random.set_state(of_numpy)  # noqa: NPY002
        for generator, state in states:
            generator.set_state(state)


class DrawnNumbers:
    """The position of a captured function in the stream of random numbers.

    Stand-ins draw nothing. So each draw sets the generator to a mark, a state that no user chooses. Another state shows
    that the function went back to an earlier position, as a checkpoint does to repeat its draws, or to a seed, which is
    a constant.

    Args:
        recorder: Recorder of the function.
        held: Generators that the function holds, without torch's default generator.
    """

    def __init__(self, recorder: Recorder, held: list[torch.Generator]) -> None:
        self._recorder, self._num_marks = recorder, 0
        self._places: dict[bytes, Tensor] = {}  # the graph's tensor for the state at each mark
        self._place = self._mark(torch.default_generator)
        # Torch may hand an operation another object for the same generator.
        self._others = {_number(generator): (generator, self._mark(generator)) for generator in held}

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note an operation that is about to be recorded."""
        if _DRAWS in func.tags:
            given = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Generator)]
            if given and _number(given[0]) != _number(torch.default_generator):
                self.check_others(given[0])
            else:
                self.record_state()
                self._write_state()
                with unset_fake_temporarily():
                    self._place = self._mark(torch.default_generator)

    def record_state(self) -> None:
        """Record the state that the function has set if it differs from the state after its last draw."""
        with unset_fake_temporarily():
            state = torch.get_rng_state()
            now = _bytes(state)
        if now != self._place:
            self._write_state()  # the function may come back to this state
            self._recorder.add(SET_STATE, (self._places.setdefault(now, state),), [], ())
            self._place = now

    def _write_state(self) -> None:
        if self._place not in self._places:
            self._places[self._place] = torch.empty(len(self._place), dtype=torch.uint8)
            self._recorder.add(STATE, (), [self._places[self._place]], ())

    def check_others(self, used: torch.Generator | None = None) -> None:
        """Check that the function neither makes nor seeds a generator other than torch's default generator.

        Raises:
            ValueError: it makes or seeds the used generator, or one that it holds.
        """
        checked = list(self._others.values()) if used is None else [self._others.get(_number(used), (used, b""))]
        with unset_fake_temporarily():
            for generator, mark in checked:
                if mark != _bytes(generator.get_state()):
                    raise ValueError(
                        f"{self._recorder.line()}: draws from a torch.Generator that is made or seeded while the model "
                        "runs; a compiled step would do that only once. Make it an attribute of the model and seed it "
                        "before; or draw without it after torch.manual_seed(seed), in torch.random.fork_rng()."
                    )

    def _mark(self, generator: torch.Generator) -> bytes:
        self._num_marks += 1
        return _bytes(generator.manual_seed(_FIRST_MARK + self._num_marks).get_state())


def _bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()


def _states_of_others() -> tuple[Any, ...]:
    """Return the states of Python's and NumPy's random numbers."""
    state: Any = np.random.get_state()  # noqa: NPY002
    _, words, *place = state
    return random.getstate(), words.tobytes(), place


def _generators(function: Callable[..., Any], arguments: Arguments) -> list[torch.Generator]:
    """Return the generators among a function's attributes, arguments and variables."""
    seen = tree_leaves(unflatten(arguments.structure, arguments.tensors))
    codes = [function]
    if isinstance(function, nn.Module):
        seen += [value for module in function.modules() for value in vars(module).values()]
        codes = list({inspect.getattr_static(type(module), "forward") for module in function.modules()})
    codes += [value for value in seen if inspect.isfunction(value)]  # such as self.f = lambda x: ...
    for code in filter(inspect.isfunction, codes):
        seen += [code.__globals__.get(name) for name in code.__code__.co_names]
        seen += outer_variables(code).values()
    found = {id(one): one for one in seen if isinstance(one, torch.Generator) and one is not torch.default_generator}
    return list(found.values())
