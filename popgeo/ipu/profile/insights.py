"""What stands out in a report, in words, each with what to do about it."""

from collections.abc import Callable, Iterator, Sequence

from popgeo.ipu.plan import Activity
from popgeo.ipu.profile.rows import Row, op_rows
from popgeo.ipu.report import Insight, Report

NOTABLE = 0.03  # of the cycles of a step; what is below is not worth a line
SOFTWARE_FUNCTIONS = {"cos", "sin", "tan", "pow", "cos_", "sin_", "pow_", "acos", "asin", "atan2", "polar"}


def insights(report: Report) -> tuple[Insight, ...]:
    """Everything that stands out, what costs most first."""
    ops = op_rows(report)
    found = [insight for rule in RULES for insight in rule(report, ops)]
    return tuple(sorted(found, key=lambda insight: -insight.share))


def memory_is_short(report: Report, ops: Sequence[Row]) -> Iterator[Insight]:
    """The fullest tile needs 90 % of its memory, or more than it has."""
    use = report.memory
    if use is None or not use.peak.size or use.peak.max() < 0.9 * use.limit:
        return
    share = use.peak.max() / use.limit
    largest = ", ".join(f"{item.name} ({item.nbytes:,} B)" for item in use.largest[:3])
    yield Insight(
        title="Memory is exceeded" if share > 1 else "Memory is nearly full",
        text=f"Tile {use.peak_tile} needs {share:.0%} of its {use.limit:,} B; most of it is {largest}.",
        remedy="Take smaller micro-batches and more gradient accumulation, or fewer channels.",
        share=float(share) if share > 1 else 0.0,
    )


def few_tiles_work(report: Report, ops: Sequence[Row]) -> Iterator[Insight]:
    """Operations whose tensor is so small that it lies on few tiles, and that take long there."""
    few = max(1, report.target.num_tiles // 64)
    slow = [
        op
        for op in ops
        if 0 < op["tiles"] <= few and op["compute"] - op["fixed"] > 0 and op["op"] not in SOFTWARE_FUNCTIONS
    ]
    share = sum(op["share"] for op in slow)
    if share >= NOTABLE:
        worst = max(slow, key=lambda op: op["cycles"])
        yield Insight(
            title="Tensors that lie on a few tiles",
            text=f"{_count(slow)} on {few} of {report.target.num_tiles:,} tiles or fewer take {share:.0%} of the "
            f"cycles; most of all {_name(worst)} with {_tiles(worst['tiles'])}.",
            remedy="Work on more elements at once (batch small tensors together), compute it once instead of in "
            "each block, or move it to the data pipeline.",
            share=share,
            ops=_indices(slow),
        )


def slow_functions(report: Report, ops: Sequence[Row]) -> Iterator[Insight]:
    """Sine, cosine and powers of float32 run in software: about 2,300 and 300 cycles of a worker for each element."""
    slow = [op for op in ops if op["op"] in SOFTWARE_FUNCTIONS]
    share = sum(op["share"] for op in slow)
    if share >= NOTABLE:
        names = sorted({op["op"] for op in slow})
        worst = max(slow, key=lambda op: op["cycles"])
        spread = f", spread over {_tiles(worst['tiles'])}" if worst["tiles"] else ""
        yield Insight(
            title=f"{' and '.join(names)} in software",
            text=f"{_count(slow)} take {share:.0%} of the cycles; the largest is {_name(worst)}{spread}. The machine "
            "has no such instruction: a float32 cosine takes a worker about 2,300 cycles an element.",
            remedy="Use a polynomial: popgeo.nn.PolynomialEnvelope in place of CosineEnvelope, products in place of "
            "pow; or compute it when the data is prepared.",
            share=share,
            ops=_indices(slow),
        )


def repeated_work(report: Report, ops: Sequence[Row]) -> Iterator[Insight]:
    """Neighbours that are searched in every step although positions do not change."""
    search = [op for op in ops if op["op"] in {"topk", "sort", "_cdist_forward", "cdist", "argsort"}]
    share = sum(op["share"] for op in search)
    if share >= NOTABLE:
        yield Insight(
            title="Neighbours are searched in every step",
            text=f"{_count(search)} ({', '.join(sorted({op['op'] for op in search}))}) take {share:.0%} of the cycles.",
            remedy="Where positions are data, find the edges once: popgeo.nn.PrecomputeInteractionGraph as a "
            "transform of the dataset, and packed edges in the batch.",
            share=share,
            ops=_indices(search),
        )


def unbalanced(report: Report, ops: Sequence[Row]) -> Iterator[Insight]:
    """Gathers and scatters of which some tiles have far more than the mean to do."""
    uneven = [
        op for op in ops if op["family"] in {"gather", "scatter", "cfconv"} and op["balance"] < 0.5 and op["compute"]
    ]
    share = sum(op["share"] for op in uneven)
    if share >= NOTABLE:
        worst = min(uneven, key=lambda op: op["balance"])
        yield Insight(
            title="Unbalanced gathers and scatters",
            text=f"{_count(uneven)} with {share:.0%} of the cycles keep the mean tile busy for less than half the "
            f"time of the slowest; {_name(worst)} for {worst['balance']:.0%}.",
            remedy="Choose numbers of rows and channels that divide over the tiles (multiples of 32 rows, channels "
            "a multiple of 16), or scatter more channels at once.",
            share=share,
            ops=_indices(uneven),
        )


def fixed_costs(report: Report, ops: Sequence[Row]) -> Iterator[Insight]:
    """Operations so small that starting them costs more than running them."""
    small = [op for op in ops if op["phase"] != "host" and op["fixed"] > 0.5 * op["cycles"] > 0]
    cycles = sum(op["fixed"] for op in small)
    share = cycles / max(report.total_cycles, 1)
    if share >= 2 * NOTABLE:
        yield Insight(
            title="Starting costs more than working",
            text=f"{_count(small)} spend more on synchronisation and on starting compute sets than on work; "
            f"that is {share:.0%} of the cycles.",
            remedy="Take larger micro-batches (more graphs a pack, more packs a batch), and let the compiler join "
            "operations: fewer, wider layers and one flat optimizer group.",
            share=share,
            ops=_indices(small),
        )


def exchange_bound(report: Report, ops: Sequence[Row]) -> Iterator[Insight]:
    """More than half of the cycles go into moving data between tiles."""
    moving = [op for op in ops if op["exchange"] > 0.5 * op["cycles"] and op["exchange"] > op["fixed"]]
    share = sum(op["exchange"] for op in moving) / max(report.total_cycles, 1)
    if report.cycles_by_activity[Activity.EXCHANGE] > 0.5 * report.total_cycles > 0 and moving:
        worst = max(moving, key=lambda op: op["exchange"])
        yield Insight(
            title="Bound by exchange",
            text=f"Tiles spend {share:.0%} of the cycles on waiting for each other's data in {_count(moving)}; most "
            f"in {_name(worst)}, which moves {worst['traffic']:,} B in {worst['split'] or 'one piece'}.",
            remedy="Use fewer channels in messages, float16 messages, or edges sorted by receiver, so that a row is "
            "fetched once.",
            share=share,
            ops=_indices(moving),
        )


def padding(report: Report, ops: Sequence[Row]) -> Iterator[Insight]:
    """Cycles that go into slots which hold nothing real, where the report was told how many do."""
    padded = [(op, 1 - share) for op in ops if (share := _real_share(op, report)) < 1 and op["phase"] != "host"]
    cycles = sum((op["cycles"] - op["fixed"]) * empty for op, empty in padded)
    share = cycles / max(report.total_cycles, 1)
    if share >= NOTABLE:
        told = ", ".join(f"{real:,.0f} of {slots:,} slots" for slots, real in report.real_of_slots.items())
        yield Insight(
            title="Padding",
            text=f"About {share:.0%} of the cycles work on padding (real: {told}).",
            remedy="Pack graphs with popgeo.packing and let FixedSizeOptions.measure choose the sizes; "
            "popgeo.packing.tune weighs several packs a batch.",
            share=share,
            ops=_indices([op for op, _ in padded]),
        )


def unknown_operations(report: Report, ops: Sequence[Row]) -> Iterator[Insight]:
    """Operations that no rule knows."""
    unknown = [op for op in ops if not op["known"]]
    if unknown:
        share = sum(op["share"] for op in unknown)
        names = sorted({op["op"] for op in unknown})
        listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        yield Insight(
            title="Operations without a rule",
            text=f"{_count(unknown)} ({listed}) are charged as slow software; {share:.0%} of the cycles are guesses.",
            remedy="Read these figures as an upper bound, or write the step with operations that have a rule.",
            share=share,
            ops=_indices(unknown),
        )


RULES: tuple[Callable[[Report, Sequence[Row]], Iterator[Insight]], ...] = (
    memory_is_short,
    few_tiles_work,
    slow_functions,
    repeated_work,
    unbalanced,
    fixed_costs,
    exchange_bound,
    padding,
    unknown_operations,
)


def _real_share(op: Row, report: Report) -> float:
    """Real share of the largest tensor's slots that the report knows of."""
    sizes = [int(size) for size in op["shapes"].replace("[", " ").replace("]", " ").replace(",", " ").split()]
    known = [size for size in sizes if size in report.real_of_slots]
    return report.real_of_slots[max(known)] / max(known) if known else 1.0


def _indices(ops: Sequence[Row]) -> tuple[int, ...]:
    return tuple(op["index"] for op in ops)


def _count(ops: Sequence[Row]) -> str:
    return "1 operation" if len(ops) == 1 else f"{len(ops)} operations"


def _tiles(number: int) -> str:
    return "1 tile" if number == 1 else f"{number:,} tiles"


def _name(op: Row) -> str:
    place = f" in {op['module']}" if op["module"] else ""
    return f"{op['op']} {op['shapes']}{place}"
