"""Where a process that a program starts anew finds PopTorch."""

from popgeo_door import open_door

open_door(__name__)
