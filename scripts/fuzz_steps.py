"""Run random programs in eager code and compiled, and print the programs with different results, made small.

    python scripts/fuzz_steps.py --minutes 60
    python scripts/fuzz_steps.py --seed 17        # repeats one program
    python scripts/fuzz_steps.py --table          # every operation of torch's own table, one by one

A `ValueError` counts as a refusal and is allowed. Any other difference from eager code is printed as a script. Programs
with results that change much if the inputs change by a millionth are left out.
"""

import argparse
import collections
import itertools
import sys
import time
import traceback
import types
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

sys.path.insert(0, str(Path(__file__).resolve().parent))
from draw_programs import Program, draw

import popgeo

EQUAL, REFUSED, DELICATE, FAILED = "equal", "refused", "left out", "failed"


def verdict(program: Program) -> tuple[str, str]:
    """Compare a compiled program with eager code; return the kind of outcome and the reason."""
    env: dict[str, Any] = {"__name__": "drawn"}
    try:
        exec(program.source, env)
        expected, nudged = env["run"](), env["run"](nudge=1e-6)
    except Exception as error:
        return DELICATE, f"eager code fails: {error}"
    if not all(bool(tensor.isfinite().all()) for tensor in expected) or not alike(expected, nudged, 1e-3):
        return DELICATE, "the results turn over"
    trains = program.optimizer != "None"
    try:
        made = env["run"](popgeo.compile_step if trains else lambda model, optimizer: popgeo.compile_forward(model))
    except ValueError as error:
        return REFUSED, str(error)
    except Exception:
        return FAILED, traceback.format_exc(limit=-3)
    return (EQUAL, "") if alike(expected, made, 2e-3) else (FAILED, differences(expected, made))


def alike(expected: list[Tensor], made: list[Tensor], tolerance: float) -> bool:
    """Check whether two runs have the same outputs and states."""
    return len(expected) == len(made) and all(_same(*both, tolerance) for both in zip(expected, made, strict=True))


def _same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    if a.is_floating_point() or a.is_complex():
        finite = a.abs()[a.isfinite()]
        largest = float(finite.max()) if finite.numel() else 0.0
        return torch.allclose(a, b, rtol=tolerance, atol=tolerance * 0.1 * (1 + largest), equal_nan=True)
    return torch.equal(a, b)


def differences(expected: list[Tensor], made: list[Tensor]) -> str:
    """List the values that differ between two runs."""
    numbers = [str(n) for n, (a, b) in enumerate(zip(expected, made, strict=False)) if not _same(a, b, 2e-3)]
    return f"{', '.join(numbers)} of {len(expected)} differ"


def shrink(program: Program, seconds: float = 60.0) -> Program:
    """Reduce a failing program as far as possible."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        smaller = next((one for one in program.smaller() if verdict(one)[0] == FAILED), None)
        if smaller is None:
            break
        program = smaller
    return program


Counts = collections.Counter[str]


def failures(seeds: Iterator[int], seconds: float, counts: Counts, situations: bool = True) -> Iterator[str]:
    """Yield the failing programs of the seeds, made small, as scripts."""
    ends = time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() > ends:
            return
        program = draw(seed, situations)
        kind, reason = verdict(program)
        counts[kind] += 1
        if kind == FAILED:
            small = shrink(program)
            yield f"# seed {seed}: {verdict(small)[1] or reason}\n{small.source}"


def main(arguments: list[str] | None = None) -> int:
    """Search for failing programs, and print the number of programs of each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="seed of the only program to run")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--alone", action="store_true", help="draw no events around the steps")
    parser.add_argument(
        "--table", metavar="DTYPE", help="run torch's table of operations with this dtype, such as complex64, instead"
    )
    chosen = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts = Counts()
    if chosen.table:
        found = table_failures(getattr(torch, chosen.table), 60 * chosen.minutes, counts)
    else:
        seeds = iter([chosen.seed]) if chosen.seed is not None else itertools.count(chosen.first)
        found = failures(seeds, 60 * chosen.minutes, counts, not chosen.alone)
    for text in found:
        print(f"{text}\n", flush=True)
    print(", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
    return int(counts[FAILED] > 0)


def table_failures(dtype: torch.dtype, seconds: float, counts: Counts) -> Iterator[str]:
    """Yield the operations of torch's table with different results or gradients if compiled."""
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]
    from torch.testing._internal.common_methods_invocations import op_db  # seconds to import

    ends = time.monotonic() + seconds
    for op in op_db:
        if time.monotonic() > ends or dtype not in op.supported_dtypes("cpu"):
            continue
        for trains in {False, op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")}:
            for number, sample in enumerate(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=trains), 4)):
                model = Sample(op.op, ((sample.input, *sample.args), sample.kwargs), trains)
                kind, reason = sample_verdict(model, trains)
                counts[kind] += 1
                if kind == FAILED:
                    yield f"# {op.name}, sample {number}, {'gradient' if trains else 'forward'}: {reason}"


class Sample(nn.Module):
    """One operation. Arguments with a gradient are parameters, other tensors are arguments of the call."""

    def __init__(self, function: Any, arguments: Any, trains: bool) -> None:
        super().__init__()
        leaves, self.tree = tree_flatten(arguments)
        self.function, self.trains = function, trains
        self.given = [t.detach() for t in leaves if isinstance(t, Tensor) and not t.requires_grad]
        self.weights = nn.ParameterList(
            [t.detach().clone() for t in leaves if isinstance(t, Tensor) and t.requires_grad]
        )
        kinds = {True: "weight", False: "given"}
        self.fixed = [kinds[t.requires_grad] if isinstance(t, Tensor) else ("fixed", t) for t in leaves]

    def forward(self, *given: Tensor) -> Any:
        rest = {"weight": iter([w + 0 for w in self.weights]), "given": iter(given)}
        args, kwargs = tree_unflatten([next(rest[f]) if isinstance(f, str) else f[1] for f in self.fixed], self.tree)
        made = [t for t in tree_flatten(self.function(*args, **kwargs))[0] if isinstance(t, Tensor)]
        if not self.trains:
            return made
        return sum(_weighed(t) for t in made if t.requires_grad)


def _weighed(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return _weighed(tensor.real) + 0.7 * _weighed(tensor.imag)
    return (tensor.reshape(-1) * torch.linspace(0.5, 1.5, tensor.numel(), dtype=tensor.dtype)).sum()


def sample_verdict(model: Sample, trains: bool) -> tuple[str, str]:
    """Return the verdict of one operation, as `verdict`."""
    given, weights = [t.clone() for t in model.given], [w.detach().clone() for w in model.weights]
    try:
        made = model(*given)
        expected = list(torch.autograd.grad(made, list(model.weights), allow_unused=True)) if trains else made
        again = model(*[t.clone() for t in model.given])
        if not trains and not alike(made, again, 1e-3):
            return DELICATE, "it is random"
    except Exception as error:
        return DELICATE, f"eager code fails: {error}"
    try:
        if trains:
            popgeo.compile_step(model, torch.optim.SGD(model.weights, lr=1.0))(*model.given)
            got = [before - w.detach() for before, w in zip(weights, model.weights, strict=True)]
            expected = [b - (b - (0 * b if g is None else g)) for b, g in zip(weights, expected, strict=True)]
        else:
            got = list(popgeo.compile_forward(model)(*model.given))
    except ValueError as error:
        return REFUSED, str(error)
    except Exception:
        return FAILED, traceback.format_exc(limit=-3)
    return (EQUAL, "") if alike(expected, got, 2e-3) else (FAILED, differences(expected, got))


if __name__ == "__main__":
    sys.exit(main())
