"""Enumerations of PopTorch, with PopTorch's names and numbers."""

from enum import Enum as _Enum
from enum import IntEnum as _IntEnum

# Steps of a call that return their results. `Default` is `All` for inference and `Final` for training.
OutputMode = _IntEnum("OutputMode", "Final EveryN All Sum Default", start=0)

AnchorMode = OutputMode  # name before PopTorch 2.4

# Whether to load batches on demand, ahead of time, or ahead of time in parts.
DataLoaderMode = _IntEnum("DataLoaderMode", "Sync Async AsyncRebatched", start=0)

# Way in which a dataset reaches the process that loads it.
SharingStrategy = _IntEnum("SharingStrategy", "SharedMemory FileSystem Fork ForkServer", start=0)

# When a model attaches to a machine. With `Never` it can be compiled but not called.
ConnectionType = _IntEnum("ConnectionType", "Always OnDemand Never", start=0)

# Type of an operation with float16 and float32 inputs. Default: PyTorch's rule.
HalfFloatCastingBehavior = _IntEnum(
    "HalfFloatCastingBehavior", "FloatDowncastToHalf HalfUpcastToFloat Default", start=0
)

# Reduction of several losses or gradients to one.
ReductionType = _IntEnum("ReductionType", "Sum Mean NoReduction", start=0)

# When a mean of gradients is divided by the number of gradients.
MeanReductionStrategy = _IntEnum("MeanReductionStrategy", "Running Post PostAndLoss", start=0)

# Groups of IPUs that wait for each other.
SyncPattern = _IntEnum("SyncPattern", "Full SinglePipeline ReplicaAndLadder", start=0)


class MatMulSerializationMode(_Enum):
    """Dimension along which a matrix product is divided into parts."""

    InputChannels, ReducingDim, OutputChannels, Disabled = "input_channels", "reducing_dim", "output_channels", "none"


# Location of tensors between the phases of a phased execution.
Liveness = _IntEnum("Liveness", "AlwaysLive OffChipAfterFwd OffChipAfterFwdNoOverlap OffChipAfterEachPhase", start=0)


class OverlapMode(_Enum):
    """How far ahead the host copies a tensor to the machine."""

    NoOverlap, OverlapAccumulationLoop = "no_overlap", "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


# Rule that turns blocks into stages without explicit stages.
AutoStage = _IntEnum("AutoStage", "SameAsIpu AutoIncrement", start=0)

# Order of the convolutions of a MultiConv.
MultiConvPlanType = _IntEnum("MultiConvPlanType", "Parallel Serial", start=0)

# Replicas that share a value: all, consecutive groups, orthogonal groups, or none.
CommGroupType = _IntEnum("CommGroupType", "All Consecutive Orthogonal NoGrouping", start=0)

# Values to return from groups of replicas.
VariableRetrievalMode = _IntEnum("VariableRetrievalMode", {"OnePerGroup": 0, "AllReplicas": 2})
