"""PopTorch's names over popgeo, for programs that were written for it; a thing's home is the module it comes from."""

from popgeo.compat.account import compat_report as compat_report
from popgeo.compat.poptorch import profiling as profiling
from popgeo.compat.poptorch.async_data import AsynchronousDataAccessor as AsynchronousDataAccessor
from popgeo.compat.poptorch.compile_hooks import registerPostCompileHook as registerPostCompileHook
from popgeo.compat.poptorch.compile_hooks import registerPreCompileHook as registerPreCompileHook
from popgeo.compat.poptorch.data_loader import DataLoader as DataLoader
from popgeo.compat.poptorch.enums import AnchorMode as AnchorMode
from popgeo.compat.poptorch.enums import AutoStage as AutoStage
from popgeo.compat.poptorch.enums import CommGroupType as CommGroupType
from popgeo.compat.poptorch.enums import ConnectionType as ConnectionType
from popgeo.compat.poptorch.enums import DataLoaderMode as DataLoaderMode
from popgeo.compat.poptorch.enums import HalfFloatCastingBehavior as HalfFloatCastingBehavior
from popgeo.compat.poptorch.enums import Liveness as Liveness
from popgeo.compat.poptorch.enums import MatMulSerializationMode as MatMulSerializationMode
from popgeo.compat.poptorch.enums import MeanReductionStrategy as MeanReductionStrategy
from popgeo.compat.poptorch.enums import MultiConvPlanType as MultiConvPlanType
from popgeo.compat.poptorch.enums import OutputMode as OutputMode
from popgeo.compat.poptorch.enums import OverlapMode as OverlapMode
from popgeo.compat.poptorch.enums import ReductionType as ReductionType
from popgeo.compat.poptorch.enums import SharingStrategy as SharingStrategy
from popgeo.compat.poptorch.enums import SyncPattern as SyncPattern
from popgeo.compat.poptorch.enums import VariableRetrievalMode as VariableRetrievalMode
from popgeo.compat.poptorch.errors import Error as Error
from popgeo.compat.poptorch.errors import RecoverableError as RecoverableError
from popgeo.compat.poptorch.errors import UnrecoverableError as UnrecoverableError
from popgeo.compat.poptorch.executor import PoplarExecutor as PoplarExecutor
from popgeo.compat.poptorch.hardware import ipuHardwareIsAvailable as ipuHardwareIsAvailable
from popgeo.compat.poptorch.hardware import ipuHardwareVersion as ipuHardwareVersion
from popgeo.compat.poptorch.hardware import isRunningOnIpu as isRunningOnIpu
from popgeo.compat.poptorch.log_level import setLogLevel as setLogLevel
from popgeo.compat.poptorch.options import ConfigFileError as ConfigFileError
from popgeo.compat.poptorch.options import Options as Options
from popgeo.compat.poptorch.refused import ctc_beam_search_decoder as ctc_beam_search_decoder
from popgeo.compat.poptorch.refused import custom_op as custom_op
from popgeo.compat.poptorch.tensor_locations import TensorLocationSettings as TensorLocationSettings
from popgeo.compat.poptorch.wrap_model import inferenceModel as inferenceModel
from popgeo.compat.poptorch.wrap_model import load as load
from popgeo.compat.poptorch.wrap_model import trainingModel as trainingModel

__version__ = "3.3.0"  # the PopTorch whose names these are
