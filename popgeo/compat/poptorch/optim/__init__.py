"""PopTorch's optimizers: torch's, with the arguments that a machine without float64 and with small float16 needs."""

from torch.optim import Optimizer as Optimizer

from popgeo.compat.poptorch.optim.optimizers import LAMB as LAMB
from popgeo.compat.poptorch.optim.optimizers import SGD as SGD
from popgeo.compat.poptorch.optim.optimizers import Adam as Adam
from popgeo.compat.poptorch.optim.optimizers import AdamW as AdamW
from popgeo.compat.poptorch.optim.optimizers import RMSprop as RMSprop
from popgeo.compat.poptorch.optim.poptorch_optimizer import VariableAttributes as VariableAttributes
