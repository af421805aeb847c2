"""Trained models in use: a calculator for dynamics, and force fields that `popgeo train` has written."""

from popgeo.deploy.ase_calculator import Calculator as Calculator
from popgeo.deploy.force_field import ForceField as ForceField
