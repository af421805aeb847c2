"""Loading weights into a model from a Lightning checkpoint or a `state_dict`, without executing code."""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from popgeo.torch_archive import checked_entries, read_content, written_again


def load_weights(path: Path, model: Any) -> nn.Module:
    """Return the model with the weights of a file.

    Args:
        path: A checkpoint with a `state_dict`, such as Lightning's, or a `state_dict`.
        model: A module, into which the weights are loaded, or a class of `LightningModule`. Parameter names in the file
            may have a prefix, such as "model.".

    Raises:
        ValueError: a checksum does not match, the file has no weights for this model, or it contains more than weights.
    """
    if isinstance(model, type):
        file = written_again(checked_entries(path, "checkpoint")[0])
        return model.load_from_checkpoint(file, map_location="cpu", weights_only=True)  # type: ignore[attr-defined]
    kept = read_content(path)
    state = kept.get("state_dict", kept) if isinstance(kept, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} holds no state_dict. Save one with torch.save(model.state_dict(), path).")
    model.load_state_dict(_of_model(state, set(model.state_dict()), path))
    return model


def _of_model(state: dict[str, Tensor], names: set[str], path: Path) -> dict[str, Tensor]:
    """Return the weights under the model's names, without a prefix that all names in the file have."""
    ends = [name for name in state if name in names or any(name.endswith(f".{one}") for one in names)]
    prefixes = {""} | {name[: name.index(".", i) + 1] for name in ends for i in range(len(name)) if "." in name[i:]}
    fitting = [prefix for prefix in sorted(prefixes, key=len) if all(prefix + name in state for name in names)]
    if not fitting:
        missing = sorted(names - set(state))[:3]
        raise ValueError(
            f"{path} has no weights for {', '.join(missing)} of the model, under any prefix; it has "
            f"{', '.join(list(state)[:3])} and others. Pass the module that was trained, with the same settings."
        )
    if len(fitting) > 1:
        raise ValueError(f"{path} has weights for the model under the prefixes {fitting}. Pass the whole module.")
    return {name: state[fitting[0] + name] for name in names}
