"""The choices that PopTorch's functions take, with PopTorch's names and numbers."""

from enum import Enum as _Enum
from enum import IntEnum as _IntEnum

# Which of the steps of a call return their results; `Default` is `All` for inference and `Final` for training.
OutputMode = _IntEnum("OutputMode", "Final EveryN All Sum Default", start=0)

AnchorMode = OutputMode  # its name before PopTorch 2.4

# Whether batches are loaded when they are asked for, ahead of time, or ahead of time in parts.
DataLoaderMode = _IntEnum("DataLoaderMode", "Sync Async AsyncRebatched", start=0)

# How a dataset reaches the process that loads it.
SharingStrategy = _IntEnum("SharingStrategy", "SharedMemory FileSystem Fork ForkServer", start=0)

# When a model takes hold of a machine; one that `Never` does can be compiled but not called.
ConnectionType = _IntEnum("ConnectionType", "Always OnDemand Never", start=0)

# What an operation of float16 and float32 computes in; PyTorch's rule holds here.
HalfFloatCastingBehavior = _IntEnum(
    "HalfFloatCastingBehavior", "FloatDowncastToHalf HalfUpcastToFloat Default", start=0
)

# How losses or gradients become one.
ReductionType = _IntEnum("ReductionType", "Sum Mean NoReduction", start=0)

# When a mean of gradients is divided by their number.
MeanReductionStrategy = _IntEnum("MeanReductionStrategy", "Running Post PostAndLoss", start=0)

# Which IPUs wait for each other.
SyncPattern = _IntEnum("SyncPattern", "Full SinglePipeline ReplicaAndLadder", start=0)


class MatMulSerializationMode(_Enum):
    """The dimension along which a matrix product is cut into parts."""

    InputChannels, ReducingDim, OutputChannels, Disabled = "input_channels", "reducing_dim", "output_channels", "none"


# Where tensors stay between the phases of a phased execution.
Liveness = _IntEnum("Liveness", "AlwaysLive OffChipAfterFwd OffChipAfterFwdNoOverlap OffChipAfterEachPhase", start=0)


class OverlapMode(_Enum):
    """How far ahead the host copies a tensor to the machine."""

    NoOverlap, OverlapAccumulationLoop = "no_overlap", "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


# How blocks become stages where the program names none.
AutoStage = _IntEnum("AutoStage", "SameAsIpu AutoIncrement", start=0)

# How several convolutions run together.
MultiConvPlanType = _IntEnum("MultiConvPlanType", "Parallel Serial", start=0)

# Which replicas share a value: groups of neighbors, groups across, all of them, or none.
CommGroupType = _IntEnum("CommGroupType", "All Consecutive Orthogonal NoGrouping", start=0)

# Which of the values come back that groups of replicas hold.
VariableRetrievalMode = _IntEnum("VariableRetrievalMode", {"OnePerGroup": 0, "AllReplicas": 2})
