"""Training a force field from a file of structures, as `popgeo train` does."""

from popgeo.train.train_command import train as train
