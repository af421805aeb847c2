"""The contracts that popgeo's own models keep, as checks of a model of yours: each is one line in a test."""

from popgeo.lazy_names import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__)
