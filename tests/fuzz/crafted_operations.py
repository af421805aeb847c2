"""Call the operations that a file may name, with hostile arguments; a crash ends the process.

python -m tests.fuzz.crafted_operations --calls 50000 [--seed 0]
"""

import argparse
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import popgeo.ops  # noqa: F401  # defines operations
from popgeo.capture import safe_operations as safe

_DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8, torch.complex64,
           torch.float16, torch.bfloat16]  # fmt: skip
_WHOLE = [0, 1, -1, 2, 3, 7, -7, 1000, 2**31, 2**40, 2**62, -(2**63)]
_WORDS = ["mean", "sum", "floor", "trunc", "none", "reflect", "linear", "tanh", "amax", "", "x"]
_FORMATS = [torch.contiguous_format, torch.channels_last, torch.channels_last_3d, torch.preserve_format]
_DRAWN: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda draw: draw.choice([*_WHOLE, *range(-3, 5), *range(-3, 5)]),
    "float": lambda draw: draw.choice([0.0, 1.0, -1.0, 0.5, 1e308, float("nan"), float("inf")]),
    "bool": lambda draw: draw.random() < 0.5,
    "number": lambda draw: draw.choice([0, 1, -1, 2**40, 0.5, float("nan"), True, 1j, 2**63 - 1, -(2**63)]),
    "str": lambda draw: draw.choice(_WORDS),
    "ScalarType": lambda draw: draw.choice(_DTYPES),
    "Layout": lambda _: torch.strided,
    "MemoryFormat": lambda draw: draw.choice(_FORMATS),
    "Device": lambda _: torch.device("cpu"),
    "Generator": lambda _: None,
}
_MOST = 10**7  # elements of a result


def targets() -> list[str]:
    """Return every operation and overload that a file may name."""
    found = []
    for name in sorted(safe._SAFE):
        namespace, short = name.split(".")
        for one in (short, f"{short}_"):
            with contextlib.suppress(AttributeError):
                for kind in getattr(getattr(torch.ops, namespace), one).overloads():
                    with contextlib.suppress(ValueError):
                        found.append(str(safe.safe_operation(f"{namespace}.{one}.{kind}")))
    return found


def _tensor(draw: random.Random) -> Tensor:
    shape = [draw.choice([0, 1, 2, 3, 4, 4, 5]) for _ in range(draw.choice([0, 1, 2, 2, 3, 4, 4]))]
    made = torch.tensor([draw.randrange(-3, 4) for _ in range(torch.Size(shape).numel())]).reshape(shape)
    made = made * 10**9 if draw.random() < 0.05 else made
    return made.to(draw.choice(_DTYPES))


def _drawn(kind: str, draw: random.Random) -> Any:
    if kind.startswith("Optional["):
        return None if draw.random() < 0.4 else _drawn(kind[9:-1], draw)
    if kind.startswith("List["):
        return [_drawn(kind[5:-1], draw) for _ in range(draw.choice([0, 1, 1, 2, 2, 2, 3, 4]))]
    return _tensor(draw) if kind == "Tensor" else _DRAWN[kind](draw)


def call(target: str, draw: random.Random) -> None:
    """Call an operation with random arguments, if the rules for files allow them.

    Raises:
        Exception: the rules or torch refuse the arguments.
    """
    func, args, named, last = safe.safe_operation(target), list[Any](), dict[str, Any](), None
    for argument in func._schema.arguments:
        value = _drawn(str(argument.real_type), draw)
        if isinstance(value, Tensor):
            value = last.clone() if last is not None and draw.random() < 0.4 else value
            last = value
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            args.append(value)
    safe.require_types(func, args, named, Tensor)
    if safe.needs_forward(target):
        return
    with FakeTensorMode() as mode, torch.no_grad():

        def faked(part: Any) -> Any:
            if isinstance(part, list):
                return [faked(one) for one in part]
            return mode.from_tensor(part) if isinstance(part, Tensor) else part

        given, by_name = faked(args), {name: faked(one) for name, one in named.items()}
        safe.require_fitting(func, given, by_name)
        made = func(*given, **by_name)
        results = made if isinstance(made, list | tuple) else [made]
        if sum(one.numel() for one in results if isinstance(one, Tensor)) > _MOST:
            return
    func(*args, **named)


def calls(count: int, seed: str) -> Iterator[tuple[str, int]]:
    """Draw calls and make them; yield each call before it is made."""
    known, draw = targets(), random.Random(seed)
    order = draw.sample(known, len(known))
    for number in range(count):
        target = order[number % len(order)]
        yield target, number
        torch.manual_seed(0)
        with contextlib.suppress(Exception):  # torch has as many kinds of errors as operations
            call(target, random.Random(f"{seed} {number} {target}"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--verbose", action="store_true", help="print each call before it is made")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    last = -1
    for target, last in calls(asked.calls, asked.seed):
        if asked.verbose:
            print(target, last, flush=True)
    print(f"{last + 1:,} calls")
