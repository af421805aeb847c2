"""Models, their layers, losses and metrics; results never depend on padding. `__init__.pyi` lists the names."""

from popgeo.lazy_names import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__)
