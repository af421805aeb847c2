"""The table of operations, `operations.csv`: family, cost rule, division of work, and execution of each operation.

A row is everything that the rest of the library knows about the operations that it names. Their family names the file
of `ipu/cost` with their cost and the file of `ipu/tiles/lower` with their division over tiles; views cost nothing and
are in the files of movement. An operation without a row is planned as slow software, and divided as far as torch's
description allows.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

UNKNOWN = "unknown"
"""The family of operations whose costs are not known."""


class Division(str, Enum):
    """A way to divide the work of an operation.

    Attributes:
        ELEMENT: Each element of the result needs only the same element of the operands.
        PATTERN: Elements move in a pattern that does not depend on data.
        SLICES: Slices along a dimension are independent of each other.
        OWN: The family divides it in its own way.
        WHOLE: It is not divided, and runs in one place.
    """

    ELEMENT = "element"
    PATTERN = "pattern"
    SLICES = "slices"
    OWN = "own"
    WHOLE = "whole"


class Out(str, Enum):
    """A way to write a result into existing memory.

    Attributes:
        SCHEMA: Torch's overload with `out`, if it has a kernel.
        BINDING: The function of that name in `torch` with `out`, which parses its arguments faster.
        COPY: A copy of the operand.
        ZEROS: Zeros.
        ONES: Ones.
        NOTHING: The memory stays unchanged.
        RESIZES: No way: torch's form with `out` resizes the memory while it works.
    """

    SCHEMA = ""
    BINDING = "binding"
    COPY = "copy"
    ZEROS = "zeros"
    ONES = "ones"
    NOTHING = "nothing"
    RESIZES = "resizes"


class ChainStep(str, Enum):
    """The form of an operation in a chain of element-wise steps.

    Attributes:
        NO: It never joins a chain.
        UNARY: The step of the same name, on one operand.
        COMPARISON: The step of the same name, on two operands; its result is a mask.
        OWN: The steps that `engine/fuse/chain_steps.py` writes for it.
    """

    NO = ""
    UNARY = "unary"
    COMPARISON = "comparison"
    OWN = "own"


class DrawCount(str, Enum):
    """The number of random numbers that an operation draws, if torch marks it as random.

    Attributes:
        DATA: The number may depend on the data.
        SHAPE: The number depends only on shapes.
        NEVER: It draws none on a processor, although it is marked.
    """

    DATA = ""
    SHAPE = "by shape"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of the table.

    Attributes:
        name: Name, as from `name_of`.
        family: Kind of work.
        rule: Cost rule: `rule_NAME` in the family's file of `ipu/cost`.
        lowering: Division in the family's own way: `lower_NAME` in the family's file of `ipu/tiles/lower`.
        divisions: Ways to divide it; the first that fits is used.
        out: Way to write its result into existing memory.
        chain: Form in chains of element-wise steps.
        moves_rows: Whether an index names the rows that it moves, as messages along edges.
        draws: Number of random numbers that it draws.
        passes: Passes over each element on a machine without this operation: names of loops in `ipu/cost/loops.py`, or
            arguments of `plan_groups` in `ipu/cost/norms.py`. Empty if its cost has another rule.
    """

    name: str
    family: str
    rule: str = ""
    lowering: str = ""
    divisions: tuple[Division, ...] = ()
    out: Out = Out.SCHEMA
    chain: ChainStep = ChainStep.NO
    moves_rows: bool = False
    draws: DrawCount = DrawCount.DATA
    passes: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        """Its name without its library."""
        return self.name.partition(".")[2]

    @property
    def file(self) -> str:
        """Name of the files with its rule and its lowering; the files of movement contain views."""
        return "movement" if self.family == "view" else self.family


def _rows() -> Iterator[Operation]:
    with Path(__file__).with_name("operations.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name in row["names"].split():
                yield Operation(
                    name=name if "." in name else f"aten.{name}",
                    family=row["family"],
                    rule=row["rule"] or row["family"],
                    lowering=row["lowering"] or row["family"],
                    divisions=tuple(map(Division, row["division"].split())),
                    out=Out(row["out"]),
                    chain=ChainStep(row["chain"]),
                    moves_rows=row["moves_rows"] == "yes",
                    draws=DrawCount(row["draws"]),
                    passes=tuple(loop.replace("-", " ") for loop in row["passes"].split()),
                )


OPERATIONS: Mapping[str, Operation] = {row.name: row for row in _rows()}
"""All operations by name; a name without a library in the file belongs to `aten`."""


def name_of(target: str) -> str:
    """Return a target without its overload and without the underscore of operations in place.

    Example:
        >>> name_of("aten.index_add_.default")
        'aten.index_add'
    """
    return target.rpartition(".")[0].rstrip("_")


def operation_of(target: str) -> Operation:
    """Return the row of an operation, for all its overloads; without a row, return a row of an unknown family.

    Example:
        >>> operation_of("aten.addmm.default").family, operation_of("aten.linalg_inv.default").family
        ('matmul', 'unknown')
    """
    name = name_of(target)
    return OPERATIONS.get(name) or Operation(name=name, family=UNKNOWN)
