"""How the numbers of an update follow from its settings and counts, written down while torch's own code finds them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from popgeo.capture.schemas import makes_tensors

_NOT_COMPUTED = {"new", "getnewargs", "getattribute", "getformat", "format", "repr", "hash", "float", "doc"}
_COMPUTED = {name: part for name, part in vars(float).items() if name[:2] == "__" and name[2:-2] not in _NOT_COMPUTED}

Formula = Callable[[Sequence[float], Sequence[Tensor]], list[float] | None]


class UpdateNumbers(TorchDispatchMode):
    """Notes the operations that run and the numbers that they are given, and how often a tensor's value is read."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []
        self.values: list[float] = []
        self.integers: list[int] = []
        self.num_reads = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        if makes_tensors(func):
            self.operations.append(func)
            given = (*args, *keywords.values())
            self.values += [number for number in given if type(number) is float]
            self.integers += [number for number in given if type(number) is int]
        else:
            self.num_reads += any(isinstance(given, Tensor) for given in args)
        return func(*args, **keywords)


class TracedNumber(float):
    """A number that writes down what Python computes of it, and what is decided by it."""

    formula: "FormulaWriter"
    name: str
    __hash__ = float.__hash__


def _written_down(name: str) -> Any:
    def act(number: TracedNumber, *others: Any) -> Any:
        return number.formula.note(name, (number, *others), _COMPUTED[name](number, *others))

    return act


for _name in _COMPUTED:
    setattr(TracedNumber, _name, _written_down(_name))


class FormulaWriter(TorchFunctionMode):
    """Writes down how an update finds the numbers that its operations are given.

    The optimizer's own code runs with settings that are `TracedNumber`s. Each operation of Python on them becomes a
    line that calls the same method of `float`, each change of a count the same function of torch on a tensor of the
    same type, and each decision a line that ends the formula if it falls otherwise. So the formula does to other
    settings and counts what the optimizer's code does, in the same order: its numbers are the same to the last bit.

    Args:
        numbers: Notes what operations are given meanwhile.
        counts: The tensors of the state that hold single numbers.
    """

    def __init__(self, numbers: UpdateNumbers, counts: Sequence[Tensor]) -> None:
        super().__init__()
        self._numbers, self._counts = numbers, {id(count): f"counts[{at}]" for at, count in enumerate(counts)}
        self._before, self._after = [count.clone() for count in counts], counts
        self._names: dict[str, Any] = {**_COMPUTED, "inf": torch.inf, "nan": torch.nan}
        self._lines: list[str] = []
        self._results: list[str] = []
        self._num_settings, self._read, self._is_whole = 0, list[str](), True

    def setting(self, value: float) -> TracedNumber:
        """The next of the settings, as the optimizer is to see it."""
        self._num_settings += 1
        return self._named(f"settings[{self._num_settings - 1}]", value)

    def note(self, operation: str, given: tuple[Any, ...], result: Any) -> Any:
        """Writes down an operation on numbers, and returns its result."""
        if result is NotImplemented:
            return result
        call = f"{operation}({self._listed(given)})"
        if type(result) is float:
            return self._named(call, result)
        self._lines.append(f"if {call} != {result!r}: return None")
        return result

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords, before = kwargs or {}, len(self._numbers.values)
        result = func(*args, **keywords)
        count = self._counts.get(id(args[0])) if args else None
        if count is not None and func is Tensor.item:
            self._read.append(count)
            return self._named(f"{count}.item()", result)
        given = [choice for choice in (*args, *keywords.values()) if isinstance(choice, float)]
        self._results += map(self._source, given)
        # Else it hands on other numbers than it was given, and nothing says how they came about.
        self._is_whole &= list(map(float.__pos__, given)) == self._numbers.values[before:]
        if count is not None and result is args[0] and not any(isinstance(other, Tensor) for other in args[1:]):
            self._names[f"f{len(self._lines)}"] = func
            self._lines.append(f"f{len(self._lines)}({count}, {self._listed(args[1:])})")
        return result

    def formula(self, settings: Sequence[float]) -> Formula | None:
        """The numbers of an update, from settings and from counts, which it moves on; None if it decides otherwise.

        There is no formula if a number or a count came about in an unknown way.

        Args:
            settings: As they were, for which it is tried.
        """
        if not self._is_whole or len(self._read) != self._numbers.num_reads:
            return None
        body = [*self._lines, f"return [{', '.join(self._results)}]"]
        exec("\n    ".join(["def formula(settings, counts):", *body]), self._names)
        formula: Formula = self._names["formula"]
        same = formula(settings, self._before) == self._numbers.values
        moved = zip(self._counts.values(), self._before, self._after, strict=True)
        return formula if same and all(old == new for name, old, new in moved if name in self._read) else None

    def _named(self, source: str, value: float) -> TracedNumber:
        number = TracedNumber(value)
        number.formula, number.name = self, f"v{len(self._lines)}"
        self._lines.append(f"{number.name} = {source}")
        return number

    def _listed(self, given: Sequence[Any]) -> str:
        return ", ".join(map(self._source, given))

    def _source(self, number: Any) -> str:
        if isinstance(number, TracedNumber):
            return number.name
        # Numbers of NumPy compute by rules of their own, and without writing anything down.
        self._is_whole &= number is None or type(number) in (float, int, bool, str)
        return repr(number) if self._is_whole else "None"
