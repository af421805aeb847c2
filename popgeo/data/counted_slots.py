"""Finds numbers of slots that are taken for numbers of graphs: in the sums and means of a loop, outside of a model."""

import dis
import sys
import warnings
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch

_SUMS = {"*", "*=", "/", "/=", "+", "+="}
_SUMS |= {
    f"{form}_{name}" for form in ("BINARY", "INPLACE") for name in ("MULTIPLY", "TRUE_DIVIDE", "ADD")
}  # Python 3.10
_KEEP = ("append", "update", "log")
_MODELS = ("torch.nn.modules.module", "torch_geometric", "popgeo")
_known: WeakKeyDictionary[CodeType, dict[int, bool]] = WeakKeyDictionary()


def warn_of_counted_slots(batch: Any, name: str, real: str) -> None:
    """Warn if the code that reads a number of slots puts it into a sum, a product or a quotient.

    `total += float(loss) * batch.num_graphs` weights a mean by slots, padding included. Models may compute with slots,
    since their shapes have that size, and so may PyG's and this package's own code.

    Args:
        batch: The batch.
        name: The attribute that is read by the caller of the calling function.
        real: The attribute that leaves padding out.
    """
    if torch.compiler.is_compiling():
        return
    frame = sys._getframe(2)
    places = _known.setdefault(frame.f_code, {})
    if frame.f_lasti not in places:
        steps = list(dis.get_instructions(frame.f_code))
        at = max(i for i, step in enumerate(steps) if step.offset <= frame.f_lasti)
        places[frame.f_lasti] = _goes_into_a_sum(steps, at)
    if places[frame.f_lasti] and not _is_in_a_model(frame):
        what = real.rpartition("_")[2]
        warnings.warn(
            f"batch.{name} counts the slots of a batch, padding included, and goes into a sum or a mean. Use "
            f"batch.{real}, which counts real {what}; where slots are meant, write len(batch.{what}_mask).",
            stacklevel=3,
        )


def _goes_into_a_sum(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Check if the value that an instruction leaves on the stack is added, multiplied, divided or kept for a sum."""
    above = 0  # values on the stack above it
    for before, step in zip(steps[at:], steps[at + 1 :], strict=False):
        is_sum = (step.argrepr if step.opname == "BINARY_OP" else step.opname) in _SUMS
        if is_sum and above <= 1:
            # A whole number next to it, as in 2 * num_graphs, makes a shape.
            left = steps[at - 2 if steps[at].opname == "LOAD_ATTR" else at - 1]
            return not any(
                one.opname.startswith(("LOAD_CONST", "LOAD_SMALL")) and type(one.argval) is int
                for one in (before, left)
            )
        if step.opname.startswith("STORE_") and above == 0:
            loads = (i for i, one in enumerate(steps) if one.opname.startswith("LOAD_") and one.argval == step.argval)
            return any(_goes_into_a_sum(steps, i) for i in loads if i != at)
        if "JUMP" in step.opname:
            return False
        above += dis.stack_effect(step.opcode, step.arg, jump=False)
        if above < 0:
            return "CALL" in step.opname and _is_kept(steps, at, steps.index(step))
    return False


def _is_kept(steps: Sequence[dis.Instruction], at: int, call: int) -> bool:
    """Check if a call whose result is not used keeps the value for a sum, as `meter.update(loss, n)` does."""
    after = steps[call + (2 if steps[call].opname == "PRECALL" else 1)].opname
    for step in reversed(steps[:at]):
        if step.opname.startswith(("POP_", "STORE_")) or after != "POP_TOP":
            return False
        if step.opname in ("LOAD_METHOD", "LOAD_ATTR") and step.argval in _KEEP:
            return True
    return False


def _is_in_a_model(frame: FrameType | None) -> bool:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if any(module == one or module.startswith(f"{one}.") for one in _MODELS):
            return True
        frame = frame.f_back
    return False
