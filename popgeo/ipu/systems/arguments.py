"""What a plan is asked for, looked at where it comes in."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from popgeo.ipu.options import Options
from popgeo.ipu.systems.cut_blocks import BLOCKS, EACH_BLOCK
from popgeo.ipu.systems.cut_blocks import Stage as NamedStage
from popgeo.ipu.systems.schedule import Schedule


def require_arguments(model: Any, example: Any, options: Any, serialize: Any) -> None:
    """Makes sure that a pipeline is planned of a module and the arguments of a call.

    Raises:
        ValueError: one of them is something else.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"A pipeline is planned of a torch.nn.Module, found {model!r}; only its layers can be cut apart."
        )
    if isinstance(example, Tensor | Mapping | str) or not isinstance(example, Sequence):
        raise ValueError(
            f"example is a {type(example).__name__}; give the arguments of one micro-batch in a list: [tensor, ...]."
        )
    if options is not None and not isinstance(options, Options):
        raise ValueError(f"options is {options!r}; give an ipu.Options.")
    if serialize is not None and not isinstance(serialize, Mapping):
        raise ValueError(f"serialize is {serialize!r}; give parts by name, such as {{'lm_head': 4}}.")


def require_stages(stages: Any) -> None:
    """Makes sure that stages are of one of the forms that there are; whether the model has such is seen later.

    Raises:
        ValueError: they are not.

    Example:
        >>> require_stages(2.5)
        Traceback (most recent call last):
            ...
        ValueError: stages is 2.5; give a number of stages, the layers of each IPU as [0, 3, 3], the layers that begin \
a stage and their IPU as {'layers.3': 1}, or 'blocks', 'each block' or ipu.Stages of a model that names its blocks.
    """
    if isinstance(stages, str):
        known = stages in (BLOCKS, EACH_BLOCK)
    elif isinstance(stages, Mapping):
        known = bool(stages) and all(isinstance(name, str) and _is_count(on) for name, on in stages.items())
    elif isinstance(stages, Sequence):
        known = bool(stages) and (all(map(_is_count, stages)) or all(isinstance(one, NamedStage) for one in stages))
    else:
        known = isinstance(stages, int)
    if not known:
        raise ValueError(
            f"stages is {stages!r}; give a number of stages, the layers of each IPU as [0, 3, 3], the layers that "
            f"begin a stage and their IPU as {{'layers.3': 1}}, or {BLOCKS!r}, {EACH_BLOCK!r} or ipu.Stages of a model "
            "that names its blocks."
        )


def schedule_of(schedule: Schedule | str) -> Schedule:
    """The schedule of a name.

    Raises:
        ValueError: there is none.

    Example:
        >>> schedule_of("1f1b")
        <Schedule.ONE_F_ONE_B: '1f1b'>
    """
    names = [one.value for one in Schedule]
    if schedule not in names:
        raise ValueError(f"schedule is {schedule!r}; it must be one of {', '.join(map(repr, names))}.")
    return Schedule(schedule)


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
