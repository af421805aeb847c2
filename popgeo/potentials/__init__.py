"""Other people's potentials at fixed shape: loaders of the very batches that their training loops take.

One file a framework, imported by its name, as each needs that framework: `from popgeo.potentials import mace`. What
they have in common, the contract of their batches, is in `padding.py`.
"""
