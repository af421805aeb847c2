"""Labels of structures as arrays of standard shape, and checks of their values."""

import math
import warnings
from typing import Any

import numpy as np

from popgeo.convert.atom_keys import WEIGHTS

# Upper limits of labels; a larger label has a different unit, or its calculation failed.
_LIMITS = {"energy": (1e6, "eV per atom"), "forces": (1e5, "eV/angstrom"), "stress": (1e3, "eV/angstrom^3")}
_ROUNDING = 1e-4  # eV per atom: rounding of an energy by float32 that needs no warning
_ASYMMETRY = 1e-2  # allowed difference of a stress from its transpose, relative to the largest entry


def numbers(key: str, value: Any, kinds: str = "iufb", allow_nan: bool = False) -> np.ndarray:
    """Return the value of a key as an array; check that the kind of its dtype is allowed.

    Raises:
        ValueError: the value has a different kind, or is not finite.
    """
    values = np.asarray(value)
    if values.dtype.kind not in kinds or not (np.isfinite(values).all() or (allow_nan and not np.isinf(values).any())):
        raise ValueError(
            f"it has {key} that is not a finite number: {str(value)[:40]!r}. Correct it, leave the structure "
            "out, or pass --partial-labels if NaN means unknown."
        )
    return values


def as_label(name: str, key: str, values: np.ndarray, num_atoms: int, cell: np.ndarray) -> np.ndarray:
    """Return a label or a weight in standard shape: [1], forces [num_atoms, 3], stress in Voigt's order [1, 6].

    Raises:
        ValueError: the shape does not fit, or the value is too large or negative.
    """
    shape = {"forces": (num_atoms, 3), "stress": (1, 6)}.get(name, (1,))
    if not has_shape_of(name, values, num_atoms):
        raise ValueError(f"it has {key} of shape {list(values.shape)}; {name} needs {list(shape)}.")
    if name == "stress":
        values = _stress(key, values, abs(float(np.linalg.det(cell))))
    values = values.reshape(shape)
    limit, unit = _LIMITS.get(name, (np.inf, ""))
    largest = np.abs(values).max(initial=0) / (num_atoms if name == "energy" else 1)
    if largest > limit:
        raise ValueError(f"it has {key} of {largest:.3g} {unit}; above {limit:.0e} is impossible. Convert its unit.")
    if name in WEIGHTS and values[0] < 0:
        raise ValueError(f"it has {key} of {values[0]:.3g}; a weight is at least 0.")
    return values


def has_shape_of(name: str, values: np.ndarray, num_atoms: int) -> bool:
    """Check that a label has a shape with a known order of its numbers; axes of length 1 do not count.

    Example:
        >>> has_shape_of("forces", np.zeros((4, 3)), 4), has_shape_of("forces", np.zeros((3, 4)), 4)
        (True, False)
    """
    of_stress: list[tuple[int, ...]] = [(6,), (9,), (3, 3)]
    shapes = {"forces": [(num_atoms, 3), (3 * num_atoms,)], "stress": of_stress, "virial": of_stress}
    return np.squeeze(values).shape in shapes.get(name, [()])


def _stress(key: str, values: np.ndarray, volume: float) -> np.ndarray:
    """Return stress or virials as a symmetric stress in Voigt's order.

    Raises:
        ValueError: the cell has no volume, or a matrix is not symmetric.
    """
    if math.isnan(values.flat[0]) and np.isnan(values).all():
        return values.flatten()[:6]
    if volume == 0:
        raise ValueError(f"it has {key}, but its cell has no volume. Pass --key stress= to leave stress out.")
    if values.size == 9:
        values = symmetrised(key, values.reshape(3, 3)).flatten()[[0, 4, 8, 5, 2, 1]]
    if "virial" in key.lower():  # the negative of stress times volume
        values = -values / volume
    return values


def symmetrised(key: str, matrix: np.ndarray) -> np.ndarray:
    """Return the mean of a stress and its transpose, [3, 3].

    Raises:
        ValueError: the two differ by more than noise.
    """
    if np.abs(matrix - matrix.T).max() > _ASYMMETRY * np.abs(matrix).max() + 1e-9:
        raise ValueError(f"it has {key} that is not symmetric: {matrix.tolist()}. Correct it or leave it out.")
    return (matrix + matrix.T) / 2


def warn_of_rounding(energy: float, num_atoms: int) -> None:
    """Warn if float32 rounds a total energy (eV) by more than 0.1 meV per atom."""
    if np.spacing(np.float32(abs(energy))) / 2 > _ROUNDING * num_atoms:
        warnings.warn(  # the same text for all structures, so that Python shows it once
            "Energies in float32 are rounded by more than 0.1 meV per atom, as totals are so large. Keep them in "
            "float64 (double=True, --double), or subtract energies of atoms.",
            stacklevel=3,
        )
