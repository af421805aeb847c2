"""Checks that arguments and weights have memory: reading freed memory would end the process."""

from collections.abc import Sequence

from torch import Tensor, nn

from popgeo.capture.held_state import module_state
from popgeo.capture.pytree import Structure
from popgeo.capture.structures import leaves
from popgeo.native.plain_tensor import require_memory


def require_arguments(structure: Structure, tensors: Sequence[Tensor]) -> None:
    """Check that the arguments of a call have memory.

    Args:
        structure: The nesting of the arguments.
        tensors: Their tensors, in the order of `structure`.

    Raises:
        ValueError: a tensor has no memory; the message names it.
    """
    for (name, _), tensor in zip(leaves(structure), tensors, strict=True):
        if tensor.is_meta:
            raise ValueError(
                f"`{name}` of shape {list(tensor.shape)} is on torch's meta device, so it has no values to compute "
                "with. Pass torch.zeros_like(it, device='cpu'); popgeo.ipu.estimate plans from shapes alone."
            )
        require_memory(f"`{name}`", tensor)


def require_weights(module: nn.Module) -> None:
    """Check that the weights and buffers of a module have memory.

    Raises:
        ValueError: a weight is lazy, or its memory was freed, as sharded models free it between calls.
    """
    for given, tensor in module_state(module).items():
        require_memory(given.name, tensor)
