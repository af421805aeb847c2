"""A process that a program starts finds popdist here."""

from popgeo_door import open_door

open_door(__name__)
