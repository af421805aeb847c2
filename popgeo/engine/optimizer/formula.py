"""Floats that record the arithmetic of Python code, so that it can be evaluated again for other numbers."""

import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from popgeo.replaced import replaced

Evaluate = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]] | None]


# Operators, which take half the time of the functions.
_SIGNS = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.pow: "**"}


class Formula:
    """Arithmetic of Python code on some numbers, recorded while the code runs on `Tracked` numbers.

    Example:
        >>> formula = Formula()
        >>> rate, count = formula.leaf(0.5), formula.leaf(2.0)
        >>> step_size = rate / (1 - 0.5**count) if count > 1 else rate
        >>> evaluate = formula.compiled([rate], [count], [step_size], [count + 1])
        >>> evaluate([0.75], [2.0]), evaluate([0.75], [1.0])
        (([1.0], [3.0]), None)
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[str, Any] = {}
        self._random = random.Random(0)
        self._tracked: dict[float, Tracked] = {}

    def leaf(self, real: Any) -> "Tracked":
        """Return a number that an evaluation is given, with its present value."""
        made = Tracked(self._random.random())
        made.formula, made.name, made.real_value = self, f"v{len(self._tracked)}", real
        self._tracked[float.__float__(made)] = made
        return made

    def found(self, number: Any) -> Any:
        """Return the tracked number that torch received as this float, or the number itself."""
        return self._tracked.get(number, number) if type(number) is float else number

    def record(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Return the result of a function. A comparison gives its present result, which each evaluation checks."""
        operands = tuple(map(self.found, operands))
        reals = [one.real_value if isinstance(one, Tracked) else one for one in operands]
        real = function(*reals)
        if not any(isinstance(one, Tracked) for one in operands):
            return real
        texts = [*map(self._text, operands)]
        sign = _SIGNS.get(function)
        call = f"{self._text(function)}({', '.join(texts)})" if sign is None else f"({texts[0]} {sign} {texts[1]})"
        if type(real) is bool:
            self._lines.append(f"if {call} is not {real}: return None")
            return real
        if not isinstance(real, int | float):
            raise TypeError(f"{function} gives {type(real).__name__}, which cannot be tracked.")
        made = self.leaf(real)
        self._lines.append(f"{made.name} = {call}")
        return made

    def compiled(self, settings: Sequence[Any], counts: Sequence[Any], *results: Sequence[Any]) -> Evaluate:
        """Return a function from values of leaves to the values of two lists of results.

        The function returns None if a comparison has another result than in the recorded run.

        Args:
            settings: Leaves in its first argument.
            counts: Leaves in its second argument.
            results: Numbers to compute.
        """
        given, read, *made = (f"[{', '.join(map(self._text, some))}]" for some in (settings, counts, *results))
        lines = [f"{given} = settings", f"{read} = counts", *self._lines, f"return {', '.join(made)}"]
        exec("\n    ".join(["def evaluate(settings, counts):", *lines]), self._names)
        evaluate: Evaluate = self._names["evaluate"]
        return evaluate

    def _text(self, operand: Any) -> str:
        """Return the name of a number or another object."""
        if isinstance(operand, Tracked):
            return operand.name
        name = f"c{len(self._names)}"
        self._names[name] = operand
        return name


class Tracked(float):
    """Number whose arithmetic a formula records.

    As a float it is random and unique, so that it is recognized where torch receives it. Code that computes with this
    float, such as NumPy's, gives random results, and the capture of an update finds them.

    Attributes:
        formula: Formula that records.
        name: Name of the number in the formula.
        real_value: Present value, which decides comparisons.
    """

    formula: Formula
    name: str
    real_value: Any

    __hash__ = __int__ = __divmod__ = __rdivmod__ = __reduce_ex__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: Any) -> "Tracked":
        return self


def _method(function: Callable[..., Any], turned: bool = False) -> Callable[..., Any]:
    def record(self: Tracked, *others: Any) -> Any:
        if not all(other is None or isinstance(other, int | float) for other in others):
            return NotImplemented
        return self.formula.record(function, *others, self) if turned else self.formula.record(function, self, *others)

    return record


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
for _name in (*_BINARY, "neg", "pos", "abs", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Tracked, f"__{_name}__", _method(getattr(operator, _name)))
for _name in _BINARY:
    setattr(Tracked, f"__r{_name}__", _method(getattr(operator, _name), turned=True))
for _function in (bool, round, math.floor, math.ceil, math.trunc):
    setattr(Tracked, f"__{_function.__name__}__", _method(_function))


@contextmanager
def recorded_math() -> Iterator[None]:
    """Let the functions of Python's `math` record what they do with tracked numbers while the block runs."""

    def recording(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            formula = next((one.formula for one in args if isinstance(one, Tracked)), None)
            return function(*args, **kwargs) if formula is None else formula.record(function, *args)

        return call

    with ExitStack() as stack:
        for name, function in list(vars(math).items()):
            if callable(function) and not name.startswith("_"):
                stack.enter_context(replaced(math, name, recording(function)))
        yield
