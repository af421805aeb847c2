"""Counter-based random numbers, and the rule that derives a seed from a run's seed, epoch and batch.

Number i of a stream depends only on the stream's key and on i, not on the order of calls. So draws do not depend on
the number of threads, and compiled and interpreted code draw the same bits: `native/csrc/random_numbers.h` has the
same functions. The functions here work on whole arrays of unsigned 64-bit numbers.

The rule: `seed_of` combines whole numbers to one seed, `(seed, epoch)` for the order of an epoch and
`(seed, epoch, ids)` for draws of one batch. The result is the same in every process and after any number of draws,
so a run can continue from the batch at which it stopped.
"""

from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_LOW_32 = np.uint64(0xFFFFFFFF)
_SHIFT_32 = np.uint64(32)
_LOG_TERMS = 11


def seed_of(*names: "int | NDArray[np.int64]") -> int:
    """Combine whole numbers, 0 or more, to a seed of 63 bits; an array counts as one number, its checksum.

    Example:
        >>> seed_of(0, 1) == seed_of(0, 2), seed_of(0, 1, np.array([3, 4])) == seed_of(0, 1, np.array([4, 3]))
        (False, False)
    """
    words = [crc32(np.ascontiguousarray(n).tobytes()) if isinstance(n, np.ndarray) else int(n) for n in names]
    if min(words) < 0:
        raise ValueError(f"A seed is {min(words)}; it must be 0 or more.")
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator_of(*names: "int | NDArray[np.int64]") -> torch.Generator:
    """Return a new generator with the seed that `seed_of` makes of the numbers."""
    return torch.Generator().manual_seed(seed_of(*names))


def new_key(source: int | torch.Generator | None) -> int:
    """Return a 64-bit key: the seed itself, or a key drawn from the generator (None: torch's default generator)."""
    if isinstance(source, int | np.integer):
        return int(source) & (2**64 - 1)
    return int(torch.randint(2**63 - 1, (), generator=source))


def hash64(keys: Words, numbers: Words) -> Words:
    """Return number `numbers[i]` of stream `keys[i]`, by SplitMix64 (Steele et al. 2014, doi 10.1145/2660193.2660195).

    Example:
        >>> hex(hash64(np.uint64([0]), np.uint64([0]))[0])
        '0xe220a8397b1dcdaf'
    """
    z = keys + (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def keys_of(key: int, numbers: NDArray[np.int64]) -> Words:
    """Return one key per number, derived from a key, so that each number has a separate stream."""
    return hash64(np.array([key], np.uint64), numbers.astype(np.uint64))


def uniform(key: int, start: int, number: int) -> Words:
    """Return the 32-bit numbers `start` to `start + number` of the stream with this key.

    Example:
        >>> bool((uniform(7, 0, 5)[2:] == uniform(7, 2, 3)).all())
        True
    """
    return hash64(np.array([key], np.uint64), np.arange(start, start + number, dtype=np.uint64)) >> _SHIFT_32


def below(keys: Words, numbers: Words, limits: Words) -> Words:
    """Return whole numbers below `limits` (1 ... 2^32 - 1), all with exactly the same probability.

    The method is Lemire's multiplication with rejection (2019, doi 10.1145/3230636). A rejected draw is repeated with
    the number 2^32 later in the same stream, so no draw depends on the repetitions of another draw.
    """
    draws = (hash64(keys, numbers) >> _SHIFT_32) * limits
    too_likely = (np.uint64(2**32) - limits) % limits
    again = np.flatnonzero((draws & _LOW_32) < too_likely)
    if len(again):
        draws[again] = below(keys[again], numbers[again] + np.uint64(2**32), limits[again]) << _SHIFT_32
    return draws >> _SHIFT_32


def unit(keys: Words, numbers: Words) -> NDArray[np.float64]:
    """Return numbers between 0 and 1, both excluded, with 53 random bits."""
    return ((hash64(keys, numbers) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def log(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the natural logarithm by +, * and / in a fixed order, for the same bits on every machine.

    Example:
        >>> bool(np.allclose(log(np.array([1e-9, 0.3, 1.0])), np.log([1e-9, 0.3, 1.0]), rtol=1e-15))
        True
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < 0.7071067811865476
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    exponent = exponent - small
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = np.full_like(s, 1.0 / (2 * _LOG_TERMS + 1))
    for term in range(2 * _LOG_TERMS - 1, 0, -2):
        series = series * z + 1.0 / term
    return 2.0 * s * series + exponent * 0.6931471805599453
