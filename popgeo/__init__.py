"""Graph neural networks on batches of fixed size, and a simulated IPU that runs them.

The names are listed in the order of use: measure and pack a dataset, load batches of one shape, pass them to a model,
compile the training step once and run it. Models are in `popgeo.nn`, as in `torch_geometric.nn`; the three models of
the first pages are here as well. Each name is imported when it is first used; `__init__.pyi` lists all of them.
"""

from popgeo.lazy_names import lazy_names as _lazy_names

__version__ = "0.2.0"

__getattr__, __dir__, _names = _lazy_names(__name__)
__all__ = [*_names, "ipu", "nn", "ops", "packing", "sampling"]
