"""Trained models in use: a calculator for dynamics."""

from popgeo.deploy.ase_calculator import Calculator as Calculator
