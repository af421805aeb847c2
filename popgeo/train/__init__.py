"""Training of a force field from a file of structures: the command `popgeo train`."""

from popgeo.train.train_command import train as train
