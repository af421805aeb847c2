"""Random numbers of a function that is captured: a step draws them where, and from which state, the function does."""

import contextlib
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from popgeo.capture.arguments import Arguments
from popgeo.capture.pytree import unflatten
from popgeo.capture.recorder import Recorder

STATE, SET_STATE = "popgeo.random_state.default", "popgeo.set_random_state.default"
_DRAWS = torch.Tag.nondeterministic_seeded
_FIRST_MARK = 0x5EED0000_70706765  # a seed that no one chooses


# Under a name, because torch forgets an operation that nothing refers to.
_get = torch.library.custom_op("popgeo::random_state", torch.get_rng_state, mutates_args=(), tags=(_DRAWS,))
_set = torch.library.custom_op("popgeo::set_random_state", torch.set_rng_state, mutates_args=(), tags=(_DRAWS,))


@contextlib.contextmanager
def drawn_numbers(function: Callable[..., Any], arguments: Arguments, recorder: Recorder) -> Iterator["DrawnNumbers"]:
    """Follows the random numbers that a function draws while the block captures it; they are as before afterwards.

    Raises:
        ValueError: the function draws numbers in a way that a step could not repeat.
    """
    held = _generators(function, arguments)
    states = [(generator, generator.get_state()) for generator in (torch.default_generator, *held)]
    others, of_numpy = _of_others(), np.random.get_state()  # noqa: NPY002
    try:
        drawn = DrawnNumbers(recorder, held)
        recorder.on_result = drawn.follow
        yield drawn
        drawn.check_others()
        if others != _of_others():
            raise ValueError(
                "The model draws from Python's random or from numpy.random while it runs, which a compiled step would "
                "do only once. Draw with torch.rand or torch.randint, or pass the numbers as an argument."
            )
    finally:
        random.setstate(others[0])
        np.random.set_state(of_numpy)  # noqa: NPY002
        for generator, state in states:
            generator.set_state(state)


class DrawnNumbers:
    """Where a function that is captured is in the stream of random numbers.

    Stand-ins draw nothing. So each place in the stream is given a state of its own, by which it shows when the function
    goes back to an earlier place, as a checkpoint does to repeat its draws, or to a seed, which is then a constant.

    Args:
        recorder: Writes the function down.
        held: The generators that the function holds next to torch's own.
    """

    def __init__(self, recorder: Recorder, held: list[torch.Generator]) -> None:
        self._recorder, self._num_marks = recorder, 0
        self._places: dict[bytes, Tensor] = {}  # what the graph calls the state at a mark
        self._place = self._mark(torch.default_generator)
        # Torch may hand an operation another object for the same generator.
        self._others = {_number(generator): (generator, self._mark(generator)) for generator in held}

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Takes note of an operation that is about to be written down."""
        if _DRAWS in func.tags:
            given = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Generator)]
            if given and _number(given[0]) != _number(torch.default_generator):
                self.check_others(given[0])
            else:
                self.go_on()
                self._write_state()
                with unset_fake_temporarily():
                    self._place = self._mark(torch.default_generator)

    def go_on(self) -> None:
        """Writes down where the function has put itself in the stream, if it is not where its last draw left it."""
        with unset_fake_temporarily():
            state = torch.get_rng_state()
            now = _bytes(state)
        if now != self._place:
            self._write_state()  # to come back to
            self._recorder.add(SET_STATE, (self._places.setdefault(now, state),), [], ())
            self._place = now

    def _write_state(self) -> None:
        if self._place not in self._places:
            self._places[self._place] = torch.empty(len(self._place), dtype=torch.uint8)
            self._recorder.add(STATE, (), [self._places[self._place]], ())

    def check_others(self, used: torch.Generator | None = None) -> None:
        """Makes sure that no generator but torch's own is made or seeded by the function.

        Raises:
            ValueError: the one that is used, or any that the function holds, is.
        """
        checked = list(self._others.values()) if used is None else [self._others.get(_number(used), (used, b""))]
        with unset_fake_temporarily():
            for generator, mark in checked:
                if mark != _bytes(generator.get_state()):
                    raise ValueError(
                        f"{self._recorder.line()}: draws from a torch.Generator that is made or seeded while the model "
                        "runs, which a compiled step would do only once. Make it an attribute of the model and seed it "
                        "before; or draw without it after torch.manual_seed(seed), in torch.random.fork_rng()."
                    )

    def _mark(self, generator: torch.Generator) -> bytes:
        self._num_marks += 1
        return _bytes(generator.manual_seed(_FIRST_MARK + self._num_marks).get_state())


def _number(generator: Any) -> int:
    """What generators that are one and the same have in common."""
    return generator._cdata


def _bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()


def _of_others() -> tuple[Any, ...]:
    """Where Python's and NumPy's random numbers are."""
    state: Any = np.random.get_state()  # noqa: NPY002
    _, words, *place = state
    return random.getstate(), words.tobytes(), place


def _generators(function: Callable[..., Any], arguments: Arguments) -> list[torch.Generator]:
    """Those that a function, or a module, has among its attributes, its arguments and what its code refers to."""
    seen = tree_leaves(unflatten(arguments.structure, arguments.tensors))
    codes = [function]
    if isinstance(function, nn.Module):
        seen += [value for module in function.modules() for value in vars(module).values()]
        codes = list({inspect.getattr_static(type(module), "forward") for module in function.modules()})
    codes += [value for value in seen if inspect.isfunction(value)]  # such as self.f = lambda x: ...
    for code in filter(inspect.isfunction, codes):
        outside = inspect.getclosurevars(code)
        seen += [*outside.nonlocals.values(), *outside.globals.values()]
    found = {id(one): one for one in seen if isinstance(one, torch.Generator) and one is not torch.default_generator}
    return list(found.values())
