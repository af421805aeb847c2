"""A stage of a pipeline: what it computes, receives and keeps; `CutStep` works it out."""

from dataclasses import dataclass

from popgeo.ipu.tiles.memory_use import MemoryUse


@dataclass(frozen=True, kw_only=True)
class StageMessage:
    """What one IPU sends another for one pass of each micro-batch.

    Attributes:
        sender: The IPU that it comes from.
        receiver: The IPU that receives it.
        backward: Whether it is gradients, for the backward pass.
        nbytes: How much.
        cycles: How long the receiver takes for it.
    """

    sender: int
    receiver: int
    backward: bool
    nbytes: int
    cycles: float


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """One stage of a pipeline.

    Attributes:
        layers: Its first and last layer.
        ipu: If it runs.
        forward: Cycles of its forward pass of one micro-batch.
        backward: Cycles of its backward pass, recomputation included; 0 if nothing is trained.
        receive_forward: Cycles in which it receives what the stages before send for a forward pass.
        receive_backward: Cycles in which it receives the gradients that later stages send.
        transfers: The messages that these cycles are made of.
        host: Cycles in which a forward pass waits for the host: for its inputs, and to send results.
        received_bytes: Bytes that it receives from other stages for both passes.
        shared_bytes: Parts of gradients that other stages work out, of parameters that both use, such as tied
            embeddings; each stage adds up its part, which is received once an update.
        weight_bytes: Of its parameters and buffers.
        stash_bytes: That it keeps of each micro-batch from its forward to its backward pass.
        memory: Bytes of each tile for one micro-batch in flight, without gradients and optimizer state. A stage that
            repeats its forward pass has dropped before what no layer keeps. Code that an earlier stage on the same IPU
            has, too, is that stage's.
        held_before: Bytes of its weights that an earlier stage on the same IPU holds already, such as tied embeddings.
        stash_copy: Cycles in which kept activations are put aside, and as many in which they come back.
        accumulate: Cycles in which a backward pass adds its gradients to the sums of the micro-batches before.
        host_overlaps: Whether the host's transfers take place while it computes.
        streaming_forward: Cycles in which a forward pass waits for streaming memory, in sequential phases.
        streaming_backward: As many of a backward pass.
    """

    layers: str
    ipu: int
    forward: float
    backward: float
    receive_forward: float
    receive_backward: float
    transfers: tuple[StageMessage, ...]
    host: float
    received_bytes: int
    shared_bytes: int
    weight_bytes: int
    stash_bytes: int
    memory: MemoryUse
    held_before: int = 0
    stash_copy: float = 0.0
    accumulate: float = 0.0
    host_overlaps: bool = False
    streaming_forward: float = 0.0
    streaming_backward: float = 0.0

    @property
    def waits_forward(self) -> float:
        """Cycles of a forward pass in which it computes nothing: for other IPUs, the host and streaming memory."""
        busy = self.receive_forward + self.streaming_forward
        return busy + (max(0.0, self.host - busy - self.forward) if self.host_overlaps else self.host)

    @property
    def waits_backward(self) -> float:
        """Cycles of a backward pass in which it computes nothing."""
        return self.receive_backward + self.streaming_backward

    @property
    def computes_and_receives(self) -> float:
        """Cycles of both passes in which it computes or receives from other IPUs."""
        return self.forward + self.backward + self.receive_forward + self.receive_backward

    @property
    def forward_pass(self) -> float:
        """Cycles of a forward pass with all that it waits for and puts aside."""
        return self.waits_forward + self.forward + self.stash_copy

    @property
    def backward_pass(self) -> float:
        """Cycles of a backward pass with all that it waits for, takes back and adds up."""
        return self.waits_backward + self.stash_copy + self.backward + self.accumulate
