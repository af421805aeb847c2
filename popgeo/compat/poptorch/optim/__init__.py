"""PopTorch's optimizers: torch's, with the arguments that a machine without float64 and with small float16 needs."""

from popgeo.compat.poptorch.optim.adam import Adam as Adam
from popgeo.compat.poptorch.optim.adam import AdamW as AdamW
from popgeo.compat.poptorch.optim.lamb import LAMB as LAMB
from popgeo.compat.poptorch.optim.rmsprop import RMSprop as RMSprop
from popgeo.compat.poptorch.optim.sgd import SGD as SGD
from popgeo.compat.poptorch.optim.wide_optimizer import VariableAttributes as VariableAttributes

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "RMSprop", "VariableAttributes"]
