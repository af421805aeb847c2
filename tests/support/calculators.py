"""Comparison of popgeo's calculator with a framework's, on structures of several sizes, with and without a cell."""

import warnings

import numpy as np

from popgeo.potentials.evaluator import SystemsCalculator


def require_the_same(ours: SystemsCalculator, own, structures: list, tolerance: float = 1e-9) -> None:
    """Check that energies, forces and stresses of periodic structures are equal, in two shapes at most."""
    ours.evaluator.make_room(structures)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for atoms in structures:
            mine, theirs = atoms.copy(), atoms.copy()
            mine.calc, theirs.calc = ours, own
            np.testing.assert_allclose(mine.get_potential_energy(), theirs.get_potential_energy(), rtol=tolerance)
            np.testing.assert_allclose(mine.get_forces(), theirs.get_forces(), rtol=tolerance, atol=tolerance)
            if atoms.pbc.all():
                expected = theirs.get_stress(voigt=False)
                np.testing.assert_allclose(mine.get_stress(voigt=False), expected, rtol=tolerance, atol=tolerance)
    assert ours.evaluator.num_shapes <= 2
