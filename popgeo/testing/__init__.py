"""The contracts of popgeo's own models as checks of your model; each check is one line in a test."""

from popgeo.lazy_names import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__)
