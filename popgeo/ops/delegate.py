"""When torch is already at the limit: the measured thresholds, all of them here."""

MIN_DEGREE = 1.0  # edges a row below which most rows are empty: torch clears them all at once
MIN_STREAM = 1 << 19  # elements from which the prefetch of the kernel pays even at one edge a row
MIN_PARALLEL = 1 << 15  # elements up to which the kernel stays in one thread


def sum_to_torch(num_edges: int, num_rows: int, channels: int, *, num_threads: int, by_edge: bool) -> bool:
    """Whether `index_add_` sums these rows at least as fast as the compiled kernels; all give the same bits.

    One thread that goes edge by edge is as fast as torch or faster for every shape; it needs an index and a type that
    is summed in itself (`by_edge`). Several threads, and half precision, go row by row, empty ones too. Measured with
    `benchmarks/scatter_gather.py --only grid`.
    """
    if num_edges >= 2 * MIN_DEGREE * num_rows:
        return False
    if by_edge and (num_threads == 1 or (num_edges + num_rows) * channels <= MIN_PARALLEL):
        return False
    return num_edges < MIN_DEGREE * num_rows or num_edges * channels < MIN_STREAM or channels < 16
