"""Datasets that ship with the package."""

from popgeo.datasets.molecules import Molecules as Molecules
from popgeo.datasets.molecules import SelectTarget as SelectTarget
