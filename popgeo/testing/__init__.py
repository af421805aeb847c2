"""The contracts that popgeo's own models keep, as checks of a model of yours: each is one line in a test."""

from popgeo.testing.padding_invariance import check_padding_invariance as check_padding_invariance
from popgeo.testing.static_capture import check_static_capture as check_static_capture
