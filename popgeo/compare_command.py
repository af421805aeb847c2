"""`popgeo compare RUN RUN ...`: a table and a figure of runs of `popgeo train`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from popgeo import command_parsers
from popgeo.atomic_write import written_whole
from popgeo.engine.resume import load_checkpoint
from popgeo.plots.style import write_png
from popgeo.plots.training import compared_losses

_OF_LOSS = {"loss", "energy_weight", "forces_weight", "stress_weight"}


def compare(arguments: Sequence[str]) -> int:
    """Print the errors of runs and the settings that differ, and draw the losses."""
    asked = command_parsers.compare(arguments)
    runs = {name: _run(folder) for name, folder in zip(_names(asked.runs), asked.runs, strict=True)}
    table = pd.DataFrame({name: errors for name, (errors, _, _) in runs.items()}).T
    print(table.to_string(float_format="{:.4g}".format))
    checksums = pd.DataFrame([_checksums(folder) for folder in asked.runs])
    for part in (part for part in ("valid", "test") if checksums[part].nunique() > 1):
        print(
            f"\nnote: not all runs have the same structures for {part}; their errors in {part} do not compare models."
        )
    settings = pd.DataFrame({name: own for name, (_, own, _) in runs.items()}).T.astype(str)
    if others := [name for name in settings if settings[name].nunique() > 1]:
        print("\nsettings that differ\n" + settings[others].to_string())
    if named := [name for name in others if name in _OF_LOSS]:
        print(f"\nnote: {', '.join(named)} differ, so that losses are different quantities; compare the errors.")
    with written_whole(asked.out) as partial:
        write_png(compared_losses({name: log for name, (_, _, log) in runs.items()}), partial)
    print(f"\nwrote {asked.out}")
    return 0


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or the whole paths if two last parts are equal."""
    names = [folder.resolve().name for folder in folders]
    return names if len({*names}) == len(names) else list(map(str, folders))


def _checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of each part of a run's structures."""
    found = load_checkpoint(folder / "checkpoint.pt").get("checksums")
    found = found if isinstance(found, dict) else {}
    return {part: str(found.get(part, "")) for part in ("valid", "test")}


def _run(folder: Path) -> tuple[dict[str, Any], dict[str, Any], pd.DataFrame]:
    """Return the errors of a run (with the errors in its test last), its settings, and its log.

    Raises:
        ValueError: `popgeo train` did not write the folder, or no epoch of the run has ended.
    """
    try:
        log = pd.read_csv(folder / "log.csv")
        settings = json.loads((folder / "settings.json").read_text())
        best = log.loc[log["valid loss"].idxmin()]
        found = {"epochs": len(log), "best epoch": int(best["epoch"]), "valid loss": best["valid loss"]}
        found |= {f"valid {name}": best[name] for name in log if name.endswith(("MAE", "RMSE"))}
        if (folder / "errors.csv").exists():
            errors = pd.read_csv(folder / "errors.csv", index_col="part")
            found |= {f"test {name}": errors.loc["test", name] for name in errors if "test" in errors.index}
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{folder} has no completed epoch of popgeo train ({reason}).") from error
    return found, settings, log
