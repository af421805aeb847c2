"""Trained models in use: a calculator for dynamics, and force fields that `popgeo train` has written."""

from popgeo.lazy_names import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__)
