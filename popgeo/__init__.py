"""Graph neural networks on batches of fixed size, and a simulated IPU that runs them.

In the order of the flow: a dataset is measured and packed, batches of one shape come out, a model reads them, an
executor compiles its training step once and runs it. Models are in `popgeo.nn`, as PyG's are in `torch_geometric.nn`;
the three of the first pages are here as well. Everything is imported when it is first used; `__init__.pyi` lists it.
"""

from popgeo.lazy_names import lazy_names as _lazy_names

__version__ = "0.2.0"

__getattr__, __dir__, _names = _lazy_names(__name__)
__all__ = [*_names, "ipu", "nn", "ops", "packing", "sampling"]
