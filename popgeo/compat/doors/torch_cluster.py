"""Where a process that a program starts anew finds torch_cluster."""

from popgeo_door import open_door

open_door(__name__)
