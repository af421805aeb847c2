"""The options of `popgeo train`, and the file in which a run keeps them for `--resume`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from popgeo.atomic_write import write_atomically
from popgeo.command_parsers import settings_in, train_parser
from popgeo.train.fit import CHECKPOINT

SETTINGS = "settings.json"
_NOT_KEPT = {"out", "resume", "config"}
_MAY_CHANGE = {*_NOT_KEPT, "epochs", "patience", "threads", "device"}  # of a run that is resumed


def begun(asked: argparse.Namespace) -> argparse.Namespace:
    """Notes the settings of a new run in its folder, for `--resume`.

    Raises:
        ValueError: the folder holds a run, or no file is named.
    """
    if (asked.out / CHECKPOINT).exists():
        raise ValueError(f"{asked.out} holds a run. Pass --resume to continue it, or name another folder by --out.")
    if asked.source is None:
        raise ValueError("FILE is missing: name the structures to train on, or pass --resume to continue a run.")
    write_atomically(asked.out / SETTINGS, json.dumps(_as_json(asked), indent=1).encode())
    return asked


def of_run(asked: argparse.Namespace, words: Sequence[str]) -> argparse.Namespace:
    """The settings of the run in a folder, with those that may change taken from the command line.

    Raises:
        ValueError: the folder holds no run, its settings are damaged, or another setting is stated.
    """
    if not (asked.out / CHECKPOINT).exists():
        raise ValueError(f"{asked.out} holds no run to continue: it has no {CHECKPOINT}. Leave --resume out.")
    path, given = asked.out / SETTINGS, _given(words) | settings_in(asked.config).keys()
    try:
        before = {"head": None, **json.loads(path.read_text())}  # runs begun before there were heads have none
        kept = {name: before[name] for name in vars(asked) if name not in (_MAY_CHANGE & given | _NOT_KEPT)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} was not written by `popgeo train`: {error!r}. Start a run with --init.") from error
    now = _as_json(asked)
    if other := [name for name in given - _MAY_CHANGE if now[name] != before[name]]:
        told = ", ".join(f"--{name.replace('_', '-')} was {before[name]}, is {now[name]}" for name in sorted(other))
        raise ValueError(f"The run in {asked.out} has other settings: {told}. Leave them out, or pass another --out.")
    kept |= {"out": asked.out, "resume": True}
    paths = {name: Path(kept[name]) for name in ("source", "valid", "test", "init") if kept[name] is not None}
    return argparse.Namespace(**{**vars(asked), **kept, **paths})


def _given(words: Sequence[str]) -> set[str]:
    """The settings that a command line states, without those that have their defaults."""
    silent = train_parser()
    for action in silent._actions:
        action.default = argparse.SUPPRESS
    return {name for name, value in vars(silent.parse_args(words)).items() if str(value) != argparse.SUPPRESS}


def _as_json(asked: argparse.Namespace) -> dict[str, Any]:
    """The settings as they are written down, with paths that hold from any folder."""
    kept = {name: value for name, value in vars(asked).items() if name not in _NOT_KEPT}
    return {name: str(value.absolute()) if isinstance(value, Path) else value for name, value in kept.items()}
