"""Fixed-shape training and evaluation of potentials from other frameworks, with the frameworks' own training loops.

There is one module per framework. Import it by name, because each module needs its framework: `from popgeo.potentials
import mace`. The common contract of batches is in `padding.py`.
"""
