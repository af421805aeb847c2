"""Where a process that a program starts again finds PopTorch Geometric."""

from popgeo_door import open_door

open_door(__name__)
