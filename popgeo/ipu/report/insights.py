"""What stands out in a report, in words, each with what to do about it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from popgeo.capture.operations import operation_of
from popgeo.ipu.report.cost_rows import Row
from popgeo.ipu.report.figures import Figures

NOTABLE = 0.03  # of the cycles of a step; a smaller share is not worth a line
SEARCHES = {"topk", "sort", "argsort", "cdist", "_cdist_forward", "_euclidean_dist"}
SOFTWARE_FUNCTIONS = {"cos", "sin", "tan", "acos", "asin", "atan", "atan2", "sinh", "cosh", "sinc", "pow"}
INSTEAD = {
    "cos": "Use a polynomial, such as popgeo.nn.PolynomialEnvelope in place of CosineEnvelope.",
    "pow": "Use products and square() in place of pow.",
}
ALWAYS = "What depends on data alone can be computed when the data is prepared."


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


def insights(report: Figures, more: "Sequence[Rule]" = ()) -> tuple[Insight, ...]:
    """Everything that stands out among operations: what keeps the step from running, then what costs most.

    Args:
        report: The figures to look at.
        more: Rules in addition to the rules of any step.
    """
    ops = report.rows.ops
    return sorted_insights(insight for rule in (*RULES, *more) for insight in rule(report, ops))


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
    yield Insight(
        title="Memory is exceeded" if share > 1 else "Memory is nearly full",
        text=f"Tile {use.peak_tile} needs {share:.0%} of its {use.limit:,} B; most of it is {largest}.",
        remedy="Take smaller micro-batches and more gradient accumulation, or fewer channels.",
        share=0.0,
        fatal=bool(share > 1),
    )


def few_tiles_work(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Operations whose tensor is so small that it lies on few tiles, and that take long there."""
    few = max(1, report.target.num_tiles // 64)
    slow = [
        op for op in ops if 0 < op["tiles"] <= few and op["compute"] > 2 * report.target.launch_cycles * op["count"]
    ]
    share = sum(op["compute"] for op in slow) / _total(ops)
    if share >= NOTABLE:
        worst = max(slow, key=lambda op: op["compute"])
        yield Insight(
            title="Tensors that lie on a few tiles" if worst["tiles"] > 1 else "A tensor that lies on one tile",
            text=f"{share:.0%} of the cycles are work of {_count(slow)} on {_tiles(few)} or fewer of "
            f"{report.target.num_tiles:,}; most of all {_name(worst)} on {_tiles(worst['tiles'])}. A tile takes at "
            "least 128 bytes of a tensor before the next one gets any.",
            remedy="Work on more elements at once (batch small tensors together), compute it once instead of in "
            "each block, or move it to the data pipeline.",
            share=share,
            ops=_indices(slow),
        )


def slow_functions(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Sine, cosine and powers of float32 run in software: about 2,300 and 300 cycles of a worker for each element."""
    slow = [op for op in ops if _function(op) in SOFTWARE_FUNCTIONS and not _is_plain_power(report, op)]
    share = sum(op["share"] for op in slow)
    if share >= NOTABLE:
        names = sorted({_function(op) for op in slow})
        worst = max(slow, key=lambda op: op["cycles"])
        spread = f" on {_tiles(worst['tiles'])}" if worst["tiles"] else ""
        yield Insight(
            title=f"{' and '.join(names)} in software",
            text=f"{share:.0%} of the cycles go into {_count(slow)}; the largest is {_name(worst)}{spread}. The "
            "machine has no such instruction: a float32 cosine takes a worker about 2,300 cycles an element, a power "
            "300.",
            remedy=" ".join([*(remedy for name, remedy in INSTEAD.items() if name in names), ALWAYS]),
            share=share,
            ops=_indices(slow),
        )


def _is_plain_power(report: Figures, op: Row) -> bool:
    """Whether a power runs as what it is, such as a square or a root."""
    steps = report.costs[op["index"]].plan.supersteps
    return _function(op) == "pow" and not any(step.name == "power" for step in steps)


def repeated_search(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Neighbours that are searched in every step although positions do not change."""
    places = {op["module"] for op in ops if op["op"] in SEARCHES and op["phase"] == "forward"}
    search = [op for op in ops if op["op"] in SEARCHES or (op["module"] and op["module"] in places)]
    share = sum(op["share"] for op in search)
    if share >= NOTABLE:
        where = f" in {' and '.join(sorted(place for place in places if place))}" if any(places) else ""
        named = ", ".join(sorted({op["op"] for op in search} & SEARCHES))
        yield Insight(
            title="Neighbours are searched in every step",
            text=f"{share:.0%} of the cycles go into {named} and what belongs to it{where}.",
            remedy="Where positions are data, find the edges once: popgeo.nn.PrecomputeInteractionGraph as a "
            "transform of the dataset, and packed edges in the batch.",
            share=share,
            ops=_indices(search),
        )


def unbalanced(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Gathers and scatters of which some tiles have far more than the mean to do."""
    uneven = [op for op in ops if operation_of(op["target"]).moves_rows and op["balance"] < 0.5]
    share = sum(op["compute"] * (1 - op["balance"]) for op in uneven) / _total(ops)
    if share >= NOTABLE:
        worst = max(uneven, key=lambda op: op["compute"] * (1 - op["balance"]))
        yield Insight(
            title="Unbalanced gathers and scatters",
            text=f"In {_count(uneven)} the mean tile works for less than half the time of the slowest, which wastes "
            f"{share:.0%} of the cycles; in {_name(worst)} it works for {worst['balance']:.0%} of it "
            f"({worst['split']}).",
            remedy="Give the operation more channels or rows to divide over the tiles: scatter several tensors as one, "
            "pool before the last linear map instead of after it.",
            share=share,
            ops=_indices(uneven),
        )


def fixed_costs(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Operations so small that starting them costs more than running them."""
    small = [op for op in ops if op["phase"] != "host" and op["fixed"] > 0.5 * op["cycles"] > 0]
    share = sum(op["fixed"] for op in small) / _total(ops)
    if share >= 2 * NOTABLE:
        yield Insight(
            title="Starting costs more than working",
            text=f"{share:.0%} of the cycles synchronise tiles and start compute sets for {_count(small)} with less "
            "work than that.",
            remedy="Take larger micro-batches (more graphs a pack, more packs a batch); join small operations: fewer, "
            "wider layers and one flat optimizer group.",
            share=share,
            ops=_indices(small),
        )


def exchange_bound(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """More than half of the cycles go into moving data between tiles."""
    moving = [op for op in ops if op["exchange"] > 0.5 * op["cycles"] and op["exchange"] > op["fixed"]]
    share = sum(op["exchange"] for op in moving) / _total(ops)
    if moving and sum(op["exchange"] for op in ops) > 0.5 * _total(ops):
        worst = max(moving, key=lambda op: op["exchange"])
        yield Insight(
            title="Bound by exchange",
            text=f"{share:.0%} of the cycles move data between tiles for {_count(moving)}; most for {_name(worst)}, "
            f"which moves {worst['traffic']:,} B ({worst['split']}).",
            remedy="Use fewer channels in messages, float16 messages, or edges sorted by receiver, so that a row is "
            "fetched once.",
            share=share,
            ops=_indices(moving),
        )


def padding(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Cycles that go into slots which hold nothing real, where the report knows how many do."""
    padded = [(op, 1 - share) for op in ops if (share := _real_share(op, report)) < 1 and op["phase"] != "host"]
    cycles = sum((op["cycles"] - op["fixed"]) * empty for op, empty in padded)
    share = cycles / _total(ops)
    if share >= NOTABLE:
        known = ", ".join(f"{real:,.0f} of {slots:,} slots" for slots, real in report.real_of_slots.items())
        yield Insight(
            title="Padding",
            text=f"About {share:.0%} of the cycles work on padding (real: {known}).",
            remedy="Pack graphs with popgeo.packing and let FixedSizeOptions.measure choose the sizes; "
            "popgeo.packing.tune weighs several packs a batch.",
            share=share,
            ops=_indices([op for op, _ in padded]),
        )


def unknown_operations(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Operations that no rule knows."""
    unknown = [op for op in ops if not op["known"]]
    if unknown:
        share = sum(op["share"] for op in unknown)
        names = sorted({op["op"] for op in unknown})
        listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        yield Insight(
            title="Operations without a rule",
            text=f"{share:.0%} of the cycles are guesses: no rule knows {listed}; they are charged as slow software.",
            remedy="Read these figures as an upper bound, or write the step with operations that have a rule.",
            share=share,
            ops=_indices(unknown),
        )


def one_fabric(report: Figures, ops: Sequence[Row]) -> Iterator[Insight]:
    """Several IPUs without shards or stages, whose exchange is counted as that of one large IPU."""
    count = report.target.num_ipus
    if count > 1:
        yield Insight(
            title="Exchange between IPUs is counted as within one",
            text=f"The target joins {count} IPUs, over which every operation is spread; what goes over the links "
            "between them is counted as if their tiles were of one IPU, so cycles are a lower bound.",
            remedy="Put the model into shards (popgeo.nn.shard_linears) or stages (popgeo.ipu.pipeline), whose "
            "transfers go over links.",
            share=0.0,
        )


Rule = Callable[[Figures, Sequence[Row]], Iterator[Insight]]
RULES: tuple[Rule, ...] = (
    few_tiles_work,
    slow_functions,
    repeated_search,
    unbalanced,
    fixed_costs,
    exchange_bound,
    padding,
    unknown_operations,
)
OF_ONE_IPU: tuple[Rule, ...] = (memory_is_short, one_fabric)


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


def _indices(ops: Sequence[Row]) -> tuple[int, ...]:
    return tuple(op["index"] for op in ops)


def _count(ops: Sequence[Row]) -> str:
    return "1 operation" if len(ops) == 1 else f"{len(ops)} operations"


def _tiles(number: int) -> str:
    return "1 tile" if number == 1 else f"{number:,} tiles"


def _name(op: Row) -> str:
    place = f" in {op['module']}" if op["module"] else ""
    return f"{op['op']} {op['shapes']}{place}"
