"""Sizes of batches, measured on a sample with a stated confidence, in bounded time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from popgeo.data.axes import Axis
from popgeo.loader.large.subgraph import PartSampler
from popgeo.random_numbers import seed_of

SHARE, CONFIDENCE = 0.001, 0.99
# Batches to sample; fewest batches, once the sampled nodes and edges exceed the limit of work.
_SOME, _FEWEST, _WORK = 512, 32, 5_000_000
# If hubs make a few batches far larger than the others, many more batches are sampled, up to a higher limit of work.
_HEAVY_TAIL, _MORE_WORK = 1.0, 20_000_000
_ALIGN = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class SizeEstimate:
    """An estimate of the sizes of batches.

    Args:
        sizes: Nodes and edges of each type that a batch should have room for. int64 [num_dimensions]
        mean: Nodes and edges of each type in a mean batch. float64 [num_dimensions]
        num_batches: Number of sampled batches.
    """

    sizes: np.ndarray
    mean: np.ndarray
    num_batches: int


def measure_sizes(
    sampler: PartSampler, packs: Iterator[np.ndarray], axes: tuple[Axis, ...], most: np.ndarray, key: tuple[int, int]
) -> SizeEstimate:
    """Measure sizes that at most one batch in a thousand exceeds, with a confidence of 99 %.

    The result is the larger of two sizes. One is the largest sampled batch. The other is a tolerance bound of the
    normal distribution (Owen 1963), widened for skewness (Cornish and Fisher 1938), because the size of a batch is a
    sum over many seeds. A few hubs can make sizes far from normal (an excess kurtosis above 1). Then more batches are
    sampled, until the largest of them suffices for any distribution: all of n batches stay below the size that a share
    p exceeds with probability (1 - p)^n. The work is bounded by nodes and edges, not by a clock, so that sizes are the
    same on every machine.

    Args:
        sampler: Samples the batches.
        packs: Seeds of each batch, without end.
        axes: Node and edge types.
        most: Upper limit of any batch. int64 [num_dimensions]
        key: Names the random numbers.
    """
    found: list[list[int]] = []
    share = SHARE / len(axes)
    enough, wanted, work, limit = math.ceil(math.log(1 - CONFIDENCE) / math.log(1 - share)), _SOME, 0, _WORK
    for ids in packs:
        found.append(sampler.sample(ids, seed_of(*key, ids + len(found))).sizes(axes))
        work += sum(found[-1])
        if len(found) == _SOME and _excess_kurtosis(np.array(found, dtype=np.float64)) > _HEAVY_TAIL:
            wanted, limit = enough, _MORE_WORK
        if len(found) >= wanted or (work > limit and len(found) >= _FEWEST):
            break
    sizes = np.array(found, dtype=np.float64)
    bound = sizes.max(axis=0)
    if len(found) < enough:
        bound = np.maximum(bound, tolerance_bound(sizes, share))
    rounded = -(-np.ceil(bound).astype(np.int64) // _ALIGN) * _ALIGN
    return SizeEstimate(sizes=np.minimum(rounded, most), mean=sizes.mean(axis=0), num_batches=len(found))


def tolerance_bound(sizes: np.ndarray, share: float) -> np.ndarray:
    """Return the size that at most a share of further samples exceeds, for a skewed normal distribution.

    Args:
        sizes: One row per sample. float64 [num_samples, num_dimensions]
        share: The share, 0 to 1.

    Example:
        >>> draws = np.random.default_rng(0).normal(100, 10, (400, 1))
        >>> bool(130 < tolerance_bound(draws, 0.001)[0] < 140)  # the quantile is 130.9
        True
    """
    from scipy import stats  # imported here, because it takes half a second

    count, z = len(sizes), stats.norm.isf(share)
    factor = stats.nct.ppf(CONFIDENCE, count - 1, z * math.sqrt(count)) / math.sqrt(count)
    deviation = sizes.std(axis=0, ddof=1)
    centred = sizes - sizes.mean(axis=0)
    skewness = (centred**3).mean(axis=0) / np.where(deviation > 0, deviation, 1) ** 3
    return sizes.mean(axis=0) + deviation * (factor + (z * z - 1) / 6 * np.maximum(skewness, 0))


def _excess_kurtosis(sizes: np.ndarray) -> float:
    """Return the largest excess kurtosis of any dimension: how much heavier its tails are than a normal distribution's.

    A dimension with a long tail of small sizes does not count. It occurs if nearly every batch has all nodes.
    """
    centred, variance = sizes - sizes.mean(axis=0), sizes.var(axis=0)
    kurtosis = (centred**4).mean(axis=0) / np.where(variance > 0, variance, 1) ** 2
    return float(np.where((centred**3).mean(axis=0) > 0, kurtosis, 0).max()) - 3
