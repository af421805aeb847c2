"""The insights about a report: findings among its operations, each with a remedy."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from popgeo.capture.operations import operation_of
from popgeo.ipu.report.cost_rows import CostRows, Row
from popgeo.ipu.report.tables import rows_of
from popgeo.ipu.tiles.memory_use import MemoryUse

NOTABLE = 0.03  # share of a step's cycles; a smaller share is no insight
SEARCHES = {"topk", "sort", "argsort", "cdist", "_cdist_forward", "_euclidean_dist"}
SOFTWARE_FUNCTIONS = {"cos", "sin", "tan", "acos", "asin", "atan", "atan2", "sinh", "cosh", "sinc", "pow"}
INSTEAD = {
    "cos": "Use a polynomial, such as popgeo.nn.PolynomialEnvelope in place of CosineEnvelope.",
    "pow": "Use products and square() in place of pow.",
}
_SENTENCES = {row["rule"]: row for row in rows_of("insights.csv")}


@dataclass(frozen=True, kw_only=True)
class Insight:
    """A finding about a report, with a remedy.

    Attributes:
        title: The finding in a few words.
        text: The finding, with figures.
        remedy: The remedy.
        share: Part of the step's cycles that the finding covers, or that the remedy saves, 0 to 1; 0 if the finding is
            not about cycles.
        ops: Positions of the operations in `Report.costs`.
        fatal: Whether the machine cannot run the step in its current form.
        change: Arguments of `replan` that apply the remedy to a step in stages; empty without such a plan.
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


def insight_of(
    rule: str,
    share: float = 0.0,
    ops: Sequence[Row] = (),
    *,
    fatal: bool = False,
    change: Mapping[str, Any] | None = None,
    **words: Any,
) -> Insight:
    """Return an insight with the sentences that `insights.csv` has for a rule.

    Args:
        rule: Name of the rule.
        share: Share of the step's cycles.
        ops: Rows of the operations.
        fatal: Whether the step cannot run.
        change: Arguments of `replan`.
        words: Values of the placeholders in the sentences.

    Example:
        >>> print(insight_of("padding", 0.25, known="3 of 4 slots").text)
        About 25% of the cycles work on padding (real: 3 of 4 slots).
    """
    title, text, remedy = (_SENTENCES[rule][part].format(share=share, **words) for part in ("title", "text", "remedy"))
    positions = tuple(op["index"] for op in ops)
    return Insight(title=title, text=text, remedy=remedy, share=share, ops=positions, fatal=fatal, change=change or {})


def insights(rows: CostRows, memory: MemoryUse | None, real_of_slots: Mapping[int, float]) -> tuple[Insight, ...]:
    """Return all insights about operations, sorted by `sorted_insights`.

    Args:
        rows: The operations of the step.
        memory: Memory of each tile, if it is known.
        real_of_slots: Mean number of real slots for each number of slots.
    """
    found = [insight for rule in RULES for insight in rule(rows)]
    return sorted_insights([*found, *padding(rows, real_of_slots), *memory_is_short(memory), *one_fabric(rows)])


def sorted_insights(found: Iterable[Insight]) -> tuple[Insight, ...]:
    """Sort insights: first fatal insights, then the largest share."""
    return tuple(sorted(found, key=lambda insight: (not insight.fatal, -insight.share)))


def memory_is_short(memory: MemoryUse | None) -> Iterator[Insight]:
    """Report that the fullest tile needs 90 % of its memory or more."""
    if memory is None or not memory.peak.size or memory.peak.max() < 0.9 * memory.limit:
        return
    share = memory.peak.max() / memory.limit
    title = "Memory is exceeded" if share > 1 else "Memory is nearly full"
    largest = ", ".join(f"{item.name} ({item.nbytes:,} B)" for item in memory.largest[:3])
    about = dict[str, Any](title=title, tile=memory.peak_tile, needs=share, limit=memory.limit, largest=largest)
    yield insight_of("memory_is_short", fatal=bool(share > 1), **about)


def few_tiles_work(rows: CostRows) -> Iterator[Insight]:
    """Report slow operations on tensors that are so small that they occupy few tiles."""
    few = max(1, rows.target.num_tiles // 64)
    least = 2 * rows.target.launch_cycles
    slow = [op for op in rows.ops if 0 < op["tiles"] <= few and op["compute"] > least * op["count"]]
    share = sum(op["compute"] for op in slow) / _total(rows)
    if share >= NOTABLE:
        worst = max(slow, key=lambda op: op["compute"])
        title = "Tensors that lie on a few tiles" if worst["tiles"] > 1 else "A tensor that lies on one tile"
        about = dict[str, Any](title=title, count=_count(len(slow), "operation"), few=_count(few, "tile"))
        about |= {"all": rows.target.num_tiles, "worst": _name(worst), "tiles": _count(worst["tiles"], "tile")}
        yield insight_of("few_tiles_work", share, slow, **about)


def slow_functions(rows: CostRows) -> Iterator[Insight]:
    """Report sine, cosine and powers of float32, which run in software."""
    slow = [op for op in rows.ops if _function(op) in SOFTWARE_FUNCTIONS and not _is_simple_power(rows, op)]
    share = sum(op["share"] for op in slow)
    if share >= NOTABLE:
        names = sorted({_function(op) for op in slow})
        worst = max(slow, key=lambda op: op["cycles"])
        spread = f" on {_count(worst['tiles'], 'tile')}" if worst["tiles"] else ""
        instead = "".join(f"{remedy} " for name, remedy in INSTEAD.items() if name in names)
        about = dict[str, Any](names=" and ".join(names), worst=_name(worst), spread=spread, instead=instead)
        yield insight_of("slow_functions", share, slow, count=_count(len(slow), "operation"), **about)


def _is_simple_power(rows: CostRows, op: Row) -> bool:
    """Check whether a power runs as a simpler operation, such as a square or a root."""
    steps = rows.costs[op["index"]].plan.supersteps
    return _function(op) == "pow" and not any(step.name == "power" for step in steps)


def repeated_search(rows: CostRows) -> Iterator[Insight]:
    """Report neighbor searches, which every step repeats although positions may not change."""
    places = {op["module"] for op in rows.ops if op["op"] in SEARCHES and op["phase"] == "forward"}
    search = [op for op in rows.ops if op["op"] in SEARCHES or (op["module"] and op["module"] in places)]
    share = sum(op["share"] for op in search)
    if share >= NOTABLE:
        inside = " and ".join(sorted(place for place in places if place))
        where = f" and other operations in {inside}" if inside else ""
        named = ", ".join(sorted({op["op"] for op in search} & SEARCHES))
        yield insight_of("repeated_search", share, search, named=named, where=where)


def unbalanced(rows: CostRows) -> Iterator[Insight]:
    """Report gathers and scatters with far more work on some tiles than on the mean tile."""
    uneven = [op for op in rows.ops if operation_of(op["target"]).moves_rows and op["balance"] < 0.5]
    share = sum(_waste(op) for op in uneven) / _total(rows)
    if share >= NOTABLE:
        worst = max(uneven, key=_waste)
        about = {"worst": _name(worst), "balance": worst["balance"], "split": worst["split"]}
        yield insight_of("unbalanced", share, uneven, count=_count(len(uneven), "operation"), **about)


def _waste(op: Row) -> float:
    """Return the compute cycles that a perfect balance of tiles would save."""
    return op["compute"] * (1 - op["balance"])


def fixed_costs(rows: CostRows) -> Iterator[Insight]:
    """Report operations so small that starting them costs more than running them."""
    small = [op for op in rows.ops if op["phase"] != "host" and op["fixed"] > 0.5 * op["cycles"] > 0]
    share = sum(op["fixed"] for op in small) / _total(rows)
    if share >= 2 * NOTABLE:
        yield insight_of("fixed_costs", share, small, count=_count(len(small), "operation"))


def exchange_bound(rows: CostRows) -> Iterator[Insight]:
    """Report that more than half of the cycles move data between tiles."""
    moving = [op for op in rows.ops if op["exchange"] > 0.5 * op["cycles"] and op["exchange"] > op["fixed"]]
    share = sum(op["exchange"] for op in moving) / _total(rows)
    if moving and sum(op["exchange"] for op in rows.ops) > 0.5 * _total(rows):
        worst = max(moving, key=lambda op: op["exchange"])
        about = {"worst": _name(worst), "traffic": worst["traffic"], "split": worst["split"]}
        yield insight_of("exchange_bound", share, moving, count=_count(len(moving), "operation"), **about)


def padding(rows: CostRows, real_of_slots: Mapping[int, float]) -> Iterator[Insight]:
    """Report the cycles that work on padding, for tensors with a known number of real slots."""
    on_machine = [op for op in rows.ops if op["phase"] != "host"]
    padded = [(op, 1 - real) for op in on_machine if (real := _real_share(op, real_of_slots)) < 1]
    share = sum((op["cycles"] - op["fixed"]) * empty for op, empty in padded) / _total(rows)
    if share >= NOTABLE:
        known = ", ".join(f"{real:,.0f} of {slots:,} slots" for slots, real in real_of_slots.items())
        yield insight_of("padding", share, [op for op, _ in padded], known=known)


def unknown_operations(rows: CostRows) -> Iterator[Insight]:
    """Report operations without a cost rule."""
    unknown = [op for op in rows.ops if not op["known"]]
    if unknown:
        share = sum(op["share"] for op in unknown)
        names = sorted({op["op"] for op in unknown})
        listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        yield insight_of("unknown_operations", share, unknown, listed=listed)


def one_fabric(rows: CostRows) -> Iterator[Insight]:
    """Report a target of several IPUs without shards or stages, costed like one large IPU."""
    if rows.target.num_ipus > 1:
        yield insight_of("one_fabric", count=rows.target.num_ipus)


RULES: tuple[Callable[[CostRows], Iterator[Insight]], ...] = (
    few_tiles_work,
    slow_functions,
    repeated_search,
    unbalanced,
    fixed_costs,
    exchange_bound,
    unknown_operations,
)


def _total(rows: CostRows) -> float:
    """Return the cycles of all operations on the machine, or 1 without any."""
    return sum(op["cycles"] for op in rows.ops if op["phase"] != "host") or 1.0


def _real_share(op: Row, real_of_slots: Mapping[int, float]) -> float:
    """Return the real share of the largest dimension with a known number of real slots."""
    sizes = [int(size) for size in op["shapes"].replace("[", " ").replace("]", " ").replace(",", " ").split()]
    known = [size for size in sizes if size in real_of_slots]
    return real_of_slots[max(known)] / max(known) if known else 1.0


def _function(op: Row) -> str:
    """Return the name of an operation without the underscore of its in-place form."""
    return str(op["op"]).rstrip("_")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _name(op: Row) -> str:
    place = f" in {op['module']}" if op["module"] else ""
    return f"{op['op']} {op['shapes']}{place}"
