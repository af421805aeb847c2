"""Finds popgeo's module of this name in a spawned process."""

from popgeo_door import open_door

open_door(__name__)
