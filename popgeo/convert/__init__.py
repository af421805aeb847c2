"""Other people's files of graphs, as stores on disk."""

from popgeo.convert.atoms import read_atoms as read_atoms
