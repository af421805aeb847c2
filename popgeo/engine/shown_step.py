"""How a step is shown: in words, and as a table in a notebook."""

from popgeo.engine.backend import Backend
from popgeo.engine.bound_step import BoundStep
from popgeo.engine.step_recipe import Recipe


def in_words(kind: str, recipe: Recipe, bound: BoundStep | None) -> str:
    """The step in one line.

    Args:
        kind: What the step is called.
        recipe: The step, and how it is compiled.
        bound: The step as it is compiled; None if it is not.
    """
    purpose = "forward" if recipe.optimizer is None else "training"
    parts = [f"{recipe.name}: {purpose}", f"backend {recipe.backend.value}"]
    parts.append("not compiled yet" if bound is None else f"{bound.calls:,} call{'s' * (bound.calls != 1)}")
    parts.append(f"micro-batches a call: {recipe.options.batch_factor}")
    if bound is not None:
        parts.append(bound.runner.how_it_runs())
    if recipe.autocast is not None:
        parts.append(f"autocast {str(recipe.autocast).removeprefix('torch.')}")
    return f"{kind}({', '.join(filter(None, parts))})"


def as_html(kind: str, recipe: Recipe, bound: BoundStep | None) -> str:
    """The step as a table of HTML; arguments as in `in_words`."""
    shown = {"model": recipe.name, "weights": sum(p.numel() for p in recipe.module.parameters())}
    if recipe.optimizer is not None:
        shown |= {"optimizer": type(recipe.optimizer).__name__}
    shown |= {"micro-batches a call": recipe.options.batch_factor, "compiled": bound is not None}
    if bound is not None:
        shown |= {"operations": len(bound.step.graph.ops), "calls": bound.calls}
        if recipe.backend is not Backend.CUDA:  # where calls return before they are through
            shown |= {"seconds": round(bound.run_seconds, 3)}
    table = {name: f"{value:,}" if type(value) in (int, float) else value for name, value in shown.items()}
    import pandas as pd

    return pd.Series(table, name=kind).to_frame().to_html()
