"""PopTorch's names over popgeo, for programs that were written for it; a thing's home is the module it comes from.

Modules in which everything public is PopTorch's are taken whole.
"""

from popgeo.capture.identity_loss import identity_loss as identity_loss
from popgeo.compat.account import compat_report as compat_report
from popgeo.compat.poptorch import _impl as _impl
from popgeo.compat.poptorch import _logging as _logging
from popgeo.compat.poptorch import optim as optim
from popgeo.compat.poptorch import options as options
from popgeo.compat.poptorch import poptorch_core as poptorch_core
from popgeo.compat.poptorch import profiling as profiling
from popgeo.compat.poptorch.async_data import AsynchronousDataAccessor as AsynchronousDataAccessor
from popgeo.compat.poptorch.blocks import *  # noqa: F403
from popgeo.compat.poptorch.call_arguments import ICustomArgParser as ICustomArgParser
from popgeo.compat.poptorch.call_arguments import registerCustomArgParser as registerCustomArgParser
from popgeo.compat.poptorch.compiling import *  # noqa: F403
from popgeo.compat.poptorch.contexts import *  # noqa: F403
from popgeo.compat.poptorch.data_loader import DataLoader as DataLoader
from popgeo.compat.poptorch.enums import *  # noqa: F403
from popgeo.compat.poptorch.errors import Error as Error
from popgeo.compat.poptorch.errors import RecoverableError as RecoverableError
from popgeo.compat.poptorch.errors import UnrecoverableError as UnrecoverableError
from popgeo.compat.poptorch.executor import PoplarExecutor as PoplarExecutor
from popgeo.compat.poptorch.log import setLogLevel as setLogLevel
from popgeo.compat.poptorch.loops import cond as cond
from popgeo.compat.poptorch.loops import for_loop as for_loop
from popgeo.compat.poptorch.options import ConfigFileError as ConfigFileError
from popgeo.compat.poptorch.options import Options as Options
from popgeo.compat.poptorch.point_clouds import fps as fps
from popgeo.compat.poptorch.point_clouds import nearest as nearest
from popgeo.compat.poptorch.strategies import *  # noqa: F403
from popgeo.compat.poptorch.tensor_locations import TensorLocationSettings as TensorLocationSettings
from popgeo.compat.poptorch.tensor_ops import *  # noqa: F403
from popgeo.compat.poptorch.wrap_model import inferenceModel as inferenceModel
from popgeo.compat.poptorch.wrap_model import load as load
from popgeo.compat.poptorch.wrap_model import trainingModel as trainingModel

__version__ = "3.3.0"  # the PopTorch whose names these are
