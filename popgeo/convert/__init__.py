"""Files of graphs and atoms in common formats, as datasets and stores on disk."""

from popgeo.lazy_names import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__)
