"""The one table of operations, `operations.csv`: what each is, how its work divides, and how the engine runs it.

A row is all that the rest of the library needs to know about an operation. Its family names the file of `ipu/cost` that
plans it and the file of `ipu/tiles/lower` that divides it over tiles; views cost nothing and are found where movement
is. An operation that has no row is planned as slow software, and divided as far as torch's own description goes.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

UNKNOWN = "unknown"
"""The family of operations whose costs are not known."""


class Division(str, Enum):
    """How the work of an operation can be divided.

    Attributes:
        ELEMENT: Each element of the result needs the same element of the operands only.
        PATTERN: Elements are moved in a pattern that no data decides.
        SLICES: Slices along a dimension are independent of each other.
        OWN: In a way of its family's own.
        WHOLE: Not at all: no way to divide it is written, so it runs in one place.
    """

    ELEMENT = "element"
    PATTERN = "pattern"
    SLICES = "slices"
    OWN = "own"
    WHOLE = "whole"


class Out(str, Enum):
    """How a result is made in memory that is there already.

    Attributes:
        SCHEMA: By the form of the operation that takes `out`, where torch has a kernel for one.
        BINDING: Likewise, through the function of that name in `torch`, which takes its arguments faster.
        COPY: By a copy of the operand.
        ZEROS: By filling it with zeros.
        ONES: By filling it with ones.
        NOTHING: By leaving it as it is.
        RESIZES: Never: torch's form with `out` resizes the memory while it works.
    """

    SCHEMA = ""
    BINDING = "binding"
    COPY = "copy"
    ZEROS = "zeros"
    ONES = "ones"
    NOTHING = "nothing"
    RESIZES = "resizes"


class ChainStep(str, Enum):
    """As what an operation joins a chain of element-wise steps.

    Attributes:
        NO: It never does.
        UNARY: The step of the same name, on one operand.
        COMPARISON: The step of the same name, on two operands; its result is a mask.
        OWN: As the steps that `engine/fuse/chain_steps.py` writes for it.
    """

    NO = ""
    UNARY = "unary"
    COMPARISON = "comparison"
    OWN = "own"


class DrawCount(str, Enum):
    """What decides how many random numbers an operation draws, if torch marks it as random.

    Attributes:
        DATA: The data, as far as is known.
        SHAPE: The shapes alone.
        NEVER: It draws none on a processor, although it is marked.
    """

    DATA = ""
    SHAPE = "by shape"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One row of the table.

    Attributes:
        name: As `name_of` gives it.
        family: What kind of work it is.
        rule: What its cost is worked out by: `rule_NAME` in the file of `ipu/cost` that its family names.
        lowering: What divides it in its family's own way: `lower_NAME` in the file of
            `ipu/tiles/lower` that its family names.
        divisions: Ways to divide it, the first that fits counts.
        out: How its result is made in memory that is there already.
        chain: As what it joins element-wise chains.
        moves_rows: Whether it moves rows that an index names, as messages along edges.
        draws: What decides how many random numbers it draws.
        passes: What a machine that has no such operation does to each element, one after the other: names of loops in
            `ipu/cost/loops.py`, or what `plan_groups` of `ipu/cost/norms.py` takes. None where its cost is worked out
            otherwise.
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
        """Its name without the library that it is of."""
        return self.name.partition(".")[2]

    @property
    def file(self) -> str:
        """Name of the file that has its rule, and of the one that has its lowering; views are found with movement."""
        return "movement" if self.family == "view" else self.family


def _rows() -> Iterator[Operation]:
    with Path(__file__).with_name("operations.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield Operation(
                name=row["name"] if "." in row["name"] else f"aten.{row['name']}",
                family=row["family"],
                rule=row["rule"] or row["family"],
                lowering=row["lowering"] or row["family"],
                divisions=tuple(map(Division, row["division"].split())),
                out=Out(row["out"]),
                chain=ChainStep(row["chain"]),
                moves_rows=row["moves_rows"] == "yes",
                draws=DrawCount(row["draws"]),
                passes=tuple(name.replace("-", " ") for name in row["passes"].split()),
            )


OPERATIONS: Mapping[str, Operation] = {row.name: row for row in _rows()}
"""Every row by its name; a row without a library's name in the file is one of `aten`."""


def name_of(target: str) -> str:
    """A target without its overload and without the underscore that says it works in place.

    Example:
        >>> name_of("aten.index_add_.default")
        'aten.index_add'
    """
    return target.rpartition(".")[0].rstrip("_")


def operation_of(target: str) -> Operation:
    """The row of an operation, whatever its overload; a row of an unknown family if the table has no row.

    Example:
        >>> operation_of("aten.addmm.default").family, operation_of("aten.linalg_inv.default").family
        ('matmul', 'unknown')
    """
    name = name_of(target)
    return OPERATIONS.get(name) or Operation(name=name, family=UNKNOWN)
