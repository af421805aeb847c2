"""Potentials of other frameworks at fixed shape: loaders of the batches that their own training loops take.

There is one file per framework, imported by its name, since each needs its framework: `from popgeo.potentials import
mace`. The common contract of batches is in `padding.py`.
"""
