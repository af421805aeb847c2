"""The cost of a pipeline's stage: cycles, messages and memory. `CutStep` computes it."""

from dataclasses import dataclass

from popgeo.ipu.tiles.memory_use import MemoryUse


@dataclass(frozen=True, kw_only=True)
class StageMessage:
    """A message from one IPU to another for one pass of each micro-batch.

    Attributes:
        sender: IPU that sends the message.
        receiver: IPU that receives the message.
        backward: Whether the message contains gradients, for the backward pass.
        nbytes: Size of the message.
        cycles: Cycles that the receiver needs for it.
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
        ipu: IPU of the stage.
        forward: Cycles of its forward pass of one micro-batch.
        backward: Cycles of its backward pass of one micro-batch, recomputation included; 0 without training.
        receive_forward: Cycles of a forward pass for receiving results of earlier stages.
        receive_backward: Cycles of a backward pass for receiving gradients of later stages.
        transfers: The messages behind these cycles.
        host: Cycles of a forward pass for waiting for the host: for its inputs, and to send results.
        received_bytes: Bytes that it receives from other stages for both passes.
        shared_bytes: Bytes of gradient parts that other stages compute for parameters that both use, such as tied
            embeddings. Each stage adds up its part, which is received once per update.
        weight_bytes: Bytes of its parameters and buffers.
        stash_bytes: Bytes of each micro-batch that it keeps from its forward to its backward pass.
        memory: Bytes of each tile for one micro-batch in flight, without gradients and optimizer state. With
            recomputation, dropped results are not included. Code that an earlier stage on the same IPU also has counts
            there.
        held_before: Bytes of its weights that an earlier stage on the same IPU already holds, such as tied embeddings.
        stash_copy: Cycles to store the kept activations, and again to load them.
        accumulate: Cycles of a backward pass for adding its gradients to the sums of earlier micro-batches.
        host_overlaps: Whether the host's transfers run while it computes.
        streaming_forward: Cycles of a forward pass for waiting for streaming memory, in sequential phases.
        streaming_backward: Cycles of a backward pass for waiting for streaming memory, in sequential phases.
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
        """Cycles of a forward pass without computing: it waits for other IPUs, the host or streaming memory."""
        busy = self.receive_forward + self.streaming_forward
        return busy + (max(0.0, self.host - busy - self.forward) if self.host_overlaps else self.host)

    @property
    def waits_backward(self) -> float:
        """Cycles of a backward pass without computing."""
        return self.receive_backward + self.streaming_backward

    @property
    def computes_and_receives(self) -> float:
        """Cycles of both passes that are spent on computing and on receiving from other IPUs."""
        return self.forward + self.backward + self.receive_forward + self.receive_backward

    @property
    def forward_pass(self) -> float:
        """Cycles of a forward pass, including waiting and storing activations."""
        return self.waits_forward + self.forward + self.stash_copy

    @property
    def backward_pass(self) -> float:
        """Cycles of a backward pass, including waiting, loading activations and adding gradients."""
        return self.waits_backward + self.stash_copy + self.backward + self.accumulate
