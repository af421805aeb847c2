"""When torch is already at the limit: the measured thresholds, all of them here."""

import torch

MIN_DEGREE = 1.0  # edges a row below which most rows are empty: torch clears them all at once
MIN_STREAM = 1 << 19  # elements from which the prefetch of the kernel pays even at one edge a row


def sum_to_torch(num_edges: int, num_rows: int, channels: int, dtype: torch.dtype, *, has_plan: bool) -> bool:
    """Whether `index_add_` sums these rows at least as fast as the planned kernel; both give the same bits.

    Measured with `benchmarks/scatter_gather.py` on one core with AVX2.
    """
    num_elements = num_edges * channels
    if num_edges < MIN_DEGREE * num_rows:
        return True
    if num_edges < 2 * MIN_DEGREE * num_rows:
        return num_elements < MIN_STREAM or channels < 16
    return channels == 1 and not has_plan and num_elements < MIN_STREAM
