"""Settings of a training run, and the file in its folder from which `--resume` reads them."""

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
_MAY_CHANGE = {*_NOT_KEPT, "epochs", "patience", "threads", "device"}  # settings that --resume may change


def begun(asked: argparse.Namespace) -> argparse.Namespace:
    """Write the settings of a new run to its folder, for `--resume`.

    Raises:
        ValueError: The folder already contains a run, or FILE is missing.
    """
    if (asked.out / CHECKPOINT).exists():
        raise ValueError(f"{asked.out} holds a run. Pass --resume to continue it, or name another folder by --out.")
    if asked.source is None:
        raise ValueError("FILE is missing: name the structures to train on, or pass --resume to continue a run.")
    write_atomically(asked.out / SETTINGS, json.dumps(_as_json(asked), indent=1).encode())
    return asked


def of_run(asked: argparse.Namespace, words: Sequence[str]) -> argparse.Namespace:
    """Return the settings of the run in a folder, updated by the options that a resumed run may change.

    Raises:
        ValueError: The folder contains no run, its settings are damaged, or an option differs that may not change.
    """
    if not (asked.out / CHECKPOINT).exists():
        raise ValueError(f"{asked.out} holds no run to continue: it has no {CHECKPOINT}. Leave --resume out.")
    path, given = asked.out / SETTINGS, _given(words) | settings_in(asked.config).keys()
    try:
        before = {"head": None, **json.loads(path.read_text())}  # older versions had no heads
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
    """Return the names of the settings that a command line contains."""
    silent = train_parser()
    for action in silent._actions:
        action.default = argparse.SUPPRESS
    return {name for name, value in vars(silent.parse_args(words)).items() if str(value) != argparse.SUPPRESS}


def _as_json(asked: argparse.Namespace) -> dict[str, Any]:
    """Return the settings as plain data, with absolute paths."""
    kept = {name: value for name, value in vars(asked).items() if name not in _NOT_KEPT}
    return {name: str(value.absolute()) if isinstance(value, Path) else value for name, value in kept.items()}
