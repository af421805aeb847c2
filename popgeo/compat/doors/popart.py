"""A process that a program starts finds the enumerations of PopART here."""

from popgeo_door import open_door

open_door(__name__)
