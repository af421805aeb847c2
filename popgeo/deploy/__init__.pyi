"""The public names: each is imported when it is first used."""

from popgeo.deploy.ase_calculator import Calculator as Calculator
from popgeo.deploy.force_field import ForceField as ForceField
