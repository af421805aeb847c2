"""What stands out in a report, in words, each with what to do about it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from popgeo.capture.operations import operation_of
from popgeo.ipu.report.cost_rows import Row
from popgeo.ipu.report.figures import Figures
from popgeo.ipu.report.tables import rows_of

NOTABLE = 0.03  # of the cycles of a step; a smaller share is not worth a line
SEARCHES = {"topk", "sort", "argsort", "cdist", "_cdist_forward", "_euclidean_dist"}
SOFTWARE_FUNCTIONS = {"cos", "sin", "tan", "acos", "asin", "atan", "atan2", "sinh", "cosh", "sinc", "pow"}
INSTEAD = {
    "cos": "Use a polynomial, such as popgeo.nn.PolynomialEnvelope in place of CosineEnvelope.",
    "pow": "Use products and square() in place of pow.",
}
_SENTENCES = {row["rule"]: row for row in rows_of("insights.csv")}


@dataclass(frozen=True, kw_only=True)
class Insight:
    """Something that stands out in a report.

    Attributes:
        title: What it is, in a few words.
        text: The finding, with figures.
        remedy: What to do about it.
        share: Part of the step's cycles that it is about, or that its remedy saves, 0 to 1; 0 if it is not about
            cycles.
        ops: Which operations, by their place in `Report.costs`.
        fatal: The machine could not run the step as it is.
        change: Arguments of `replan` that do what the remedy says, of a step in stages; empty if no plan does.
    """

    title: str
    text: str
    remedy: str
    share: float
    ops: tuple[int, ...] = field(default=(), repr=False)
    fatal: bool = False
    change: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.title}: {self.text} {self.remedy}"


def said(
    rule: str,
    share: float = 0.0,
    ops: Sequence[Row] = (),
    *,
    fatal: bool = False,
    change: Mapping[str, Any] | None = None,
    **words: Any,
) -> Insight:
    """What stands out by a rule, in its sentences of `insights.csv`.

    Args:
        rule: Its name.
        share: As `Insight` has it.
        ops: Rows of the operations that it is about.
        fatal: Whether the step cannot run.
        change: What to change in a plan.
        words: What goes into the places that the sentences leave.

    Example:
        >>> print(said("padding", 0.25, known="3 of 4 slots").text)
        About 25% of the cycles work on padding (real: 3 of 4 slots).
    """
    title, text, remedy = (_SENTENCES[rule][part].format(share=share, **words) for part in ("title", "text", "remedy"))
    about = tuple(op["index"] for op in ops)
    return Insight(title=title, text=text, remedy=remedy, share=share, ops=about, fatal=fatal, change=change or {})


def insights(report: Figures) -> tuple[Insight, ...]:
    """Everything that stands out among operations: what keeps the step from running, then what costs most."""
    return sorted_insights(insight for rule in RULES for insight in rule(report, report.rows.ops))


def sorted_insights(found: Iterable[Insight]) -> tuple[Insight, ...]:
    """What keeps the step from running, then what saves or costs most."""
    return tuple(sorted(found, key=lambda insight: (not insight.fatal, -insight.share)))


def memory_is_short(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """The fullest tile needs 90 % of its memory, or more than it has."""
    use = report.tile_memory
    if use is None or not use.peak.size or use.peak.max() < 0.9 * use.limit:
        return
    share = use.peak.max() / use.limit
    largest = ", ".join(f"{item.name} ({item.nbytes:,} B)" for item in use.largest[:3])
    title = "Memory is exceeded" if share > 1 else "Memory is nearly full"
    about = dict[str, Any](title=title, tile=use.peak_tile, needs=share, limit=use.limit, largest=largest)
    yield said("memory_is_short", fatal=bool(share > 1), **about)


def few_tiles_work(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Operations whose tensor is so small that it lies on few tiles, and that take long there."""
    few = max(1, report.target.num_tiles // 64)
    slow = [
        op for op in ops if 0 < op["tiles"] <= few and op["compute"] > 2 * report.target.launch_cycles * op["count"]
    ]
    share = sum(op["compute"] for op in slow) / _total(ops)
    if share >= NOTABLE:
        worst = max(slow, key=lambda op: op["compute"])
        title = "Tensors that lie on a few tiles" if worst["tiles"] > 1 else "A tensor that lies on one tile"
        about = dict[str, Any](title=title, count=_count(len(slow), "operation"), few=_count(few, "tile"))
        about |= {"all": report.target.num_tiles, "worst": _name(worst), "tiles": _count(worst["tiles"], "tile")}
        yield said("few_tiles_work", share, slow, **about)


def slow_functions(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Sine, cosine and powers of float32 run in software: about 2,300 and 300 cycles of a worker for each element."""
    slow = [op for op in ops if _function(op) in SOFTWARE_FUNCTIONS and not _is_plain_power(report, op)]
    share = sum(op["share"] for op in slow)
    if share >= NOTABLE:
        names = sorted({_function(op) for op in slow})
        worst = max(slow, key=lambda op: op["cycles"])
        spread = f" on {_count(worst['tiles'], 'tile')}" if worst["tiles"] else ""
        instead = "".join(f"{remedy} " for name, remedy in INSTEAD.items() if name in names)
        about = dict[str, Any](names=" and ".join(names), worst=_name(worst), spread=spread, instead=instead)
        yield said("slow_functions", share, slow, count=_count(len(slow), "operation"), **about)


def _is_plain_power(report: Figures, op: Row) -> bool:
    """Whether a power runs as what it is, such as a square or a root."""
    steps = report.costs[op["index"]].plan.supersteps
    return _function(op) == "pow" and not any(step.name == "power" for step in steps)


def repeated_search(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Neighbors that are searched in every step although positions do not change."""
    places = {op["module"] for op in ops if op["op"] in SEARCHES and op["phase"] == "forward"}
    search = [op for op in ops if op["op"] in SEARCHES or (op["module"] and op["module"] in places)]
    share = sum(op["share"] for op in search)
    if share >= NOTABLE:
        where = f" in {' and '.join(sorted(place for place in places if place))}" if any(places) else ""
        named = ", ".join(sorted({op["op"] for op in search} & SEARCHES))
        yield said("repeated_search", share, search, named=named, where=where)


def unbalanced(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Gathers and scatters of which some tiles have far more than the mean to do."""
    uneven = [op for op in ops if operation_of(op["target"]).moves_rows and op["balance"] < 0.5]
    share = sum(op["compute"] * (1 - op["balance"]) for op in uneven) / _total(ops)
    if share >= NOTABLE:
        worst = max(uneven, key=lambda op: op["compute"] * (1 - op["balance"]))
        about = dict[str, Any](worst=_name(worst), balance=worst["balance"], split=worst["split"])
        yield said("unbalanced", share, uneven, count=_count(len(uneven), "operation"), **about)


def fixed_costs(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Operations so small that starting them costs more than running them."""
    small = [op for op in ops if op["phase"] != "host" and op["fixed"] > 0.5 * op["cycles"] > 0]
    share = sum(op["fixed"] for op in small) / _total(ops)
    if share >= 2 * NOTABLE:
        yield said("fixed_costs", share, small, count=_count(len(small), "operation"))


def exchange_bound(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """More than half of the cycles go into moving data between tiles."""
    moving = [op for op in ops if op["exchange"] > 0.5 * op["cycles"] and op["exchange"] > op["fixed"]]
    share = sum(op["exchange"] for op in moving) / _total(ops)
    if moving and sum(op["exchange"] for op in ops) > 0.5 * _total(ops):
        worst = max(moving, key=lambda op: op["exchange"])
        about = dict[str, Any](worst=_name(worst), traffic=worst["traffic"], split=worst["split"])
        yield said("exchange_bound", share, moving, count=_count(len(moving), "operation"), **about)


def padding(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Cycles that go into slots which hold nothing real, where the report knows how many do."""
    padded = [(op, 1 - share) for op in ops if (share := _real_share(op, report)) < 1 and op["phase"] != "host"]
    cycles = sum((op["cycles"] - op["fixed"]) * empty for op, empty in padded)
    share = cycles / _total(ops)
    if share >= NOTABLE:
        known = ", ".join(f"{real:,.0f} of {slots:,} slots" for slots, real in report.real_of_slots.items())
        yield said("padding", share, [op for op, _ in padded], known=known)


def unknown_operations(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Operations that no rule knows."""
    unknown = [op for op in ops if not op["known"]]
    if unknown:
        share = sum(op["share"] for op in unknown)
        names = sorted({op["op"] for op in unknown})
        listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        yield said("unknown_operations", share, unknown, listed=listed)


def one_fabric(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Several IPUs without shards or stages, whose exchange is counted as that of one large IPU."""
    if report.target.num_ipus > 1:
        yield said("one_fabric", count=report.target.num_ipus)


RULES: tuple[Callable[[Figures, Sequence[Row]], Iterator[Insight]], ...] = (
    few_tiles_work,
    slow_functions,
    repeated_search,
    unbalanced,
    fixed_costs,
    exchange_bound,
    padding,
    unknown_operations,
    memory_is_short,
    one_fabric,
)


def _total(ops: Sequence[Row]) -> float:
    """Cycles of all operations on the machine."""
    return sum(op["cycles"] for op in ops if op["phase"] != "host") or 1.0


def _real_share(op: Row, report: Figures) -> float:
    """Real share of the largest tensor's slots that the report knows of."""
    sizes = [int(size) for size in op["shapes"].replace("[", " ").replace("]", " ").replace(",", " ").split()]
    known = [size for size in sizes if size in report.real_of_slots]
    return report.real_of_slots[max(known)] / max(known) if known else 1.0


def _function(op: Row) -> str:
    """What an operation computes, in place or not."""
    return str(op["op"]).rstrip("_")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _name(op: Row) -> str:
    place = f" in {op['module']}" if op["module"] else ""
    return f"{op['op']} {op['shapes']}{place}"
