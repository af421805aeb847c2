"""PopTorch's optimizers: torch's, with the arguments that a machine without float64 and with small float16 needs."""

from popgeo.compat.poptorch.optim.optimizers import LAMB, SGD, Adam, AdamW, RMSprop
from popgeo.compat.poptorch.optim.poptorch_optimizer import VariableAttributes

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "RMSprop", "VariableAttributes"]
