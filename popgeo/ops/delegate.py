"""When torch is already at the limit: the measured thresholds, all of them here."""

import torch


def sum_to_torch(num_edges: int, num_rows: int, channels: int, dtype: torch.dtype, *, has_plan: bool) -> bool:
    """Whether `index_add_` sums these rows at least as fast as the planned kernel; both give the same bits."""
    return channels == 0 or num_edges == 0
