"""Use of trained models: an ASE calculator for dynamics, and force fields written by `popgeo train`."""

from popgeo.lazy_names import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__)
