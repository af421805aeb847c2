"""Trained models in use: a calculator for dynamics, and force fields that `popgeo train` has written."""

from typing import TYPE_CHECKING

from popgeo.lazy_names import lazy_names as _lazy_names

if TYPE_CHECKING:
    from popgeo.deploy.ase_calculator import Calculator as Calculator
    from popgeo.deploy.force_field import ForceField as ForceField
else:
    __getattr__, __dir__, __all__ = _lazy_names(__name__)
