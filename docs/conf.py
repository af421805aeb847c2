"""Settings of sphinx for the site: Markdown pages, a reference from docstrings, and the committed notebooks."""

import json
import re
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from sphinx.ext import autosummary

import popgeo
import popgeo.plots

HERE = Path(__file__).parent

project = "popgeo"
author = "The popgeo developers"
copyright = "The popgeo developers"
version = release = popgeo.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "myst_nb",
]
html_theme = "furo"
html_title = "popgeo"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]

# A name in backticks links to its place in the reference. A name without a place is plain code.
default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# Pages show the methods that a class inherits from popgeo's classes, but not the methods that it inherits from torch's.
OF_OTHERS = "DataLoader,Dataset,Module,Sampler,FeatureStore,Enum,int,Exception,str,dict,list,tuple,object"
autodoc_default_options = {
    "members": True,
    "imported-members": True,
    "inherited-members": OF_OTHERS,
}
# The page of popgeo.lightning is also made if Lightning is not installed.
autodoc_mock_imports = [] if find_spec("lightning") else ["lightning"]
autosummary_generate = False
# These abbreviations do not end a sentence.
autosummary.WELL_KNOWN_ABBREVIATIONS += ("eq.", "sec.", ", .")
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# Sphinx reads only files below this folder, so the notebooks are copied into the folder of their page.
COMMITTED = HERE.parent / "notebooks"
SECTIONS = {
    "": "The outputs are from the last run; the tests run the notebooks from top to bottom.",
    "compat": "These notebooks use the names of PopTorch and PopTorch Geometric, as on an IPU:",
}


def in_words(section: str, source: str) -> str:
    """Describe the picture of a cell for blind readers: its section, the drawing function, its titles and axes."""
    drawn = (
        getattr(popgeo.plots, name)
        for name in re.findall(r"\bplots\.(\w+)\(", source)
        if name != "panels"
    )
    drawn = (*drawn, *([popgeo.ipu.Pipeline.plot] if ".plot()" in source else []))
    sentences = [
        re.sub("^Draws? ", "", one.__doc__.partition("\n")[0]) for one in drawn
    ]
    written = re.findall(
        r'(?:\b(?:title|xlabel|ylabel|label)=|set_\w*(?:title|label)\()"([^"]+)"',
        source,
    )
    words = [section, *sentences, ", ".join(dict.fromkeys(written))]
    return "; ".join(
        dict.fromkeys(part.replace("`", "").rstrip(".") for part in words if part)
    )


def with_pictures_in_words(notebook: Path) -> str:
    """Return the notebook with an alternative text for each picture, which would else be the name of its file."""
    content, section = json.loads(notebook.read_text()), ""
    for cell in content["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            section = [
                section,
                *re.findall(r"^#+ (.+)", source, flags=re.MULTILINE),
            ][-1]
        elif any(
            "image/png" in output.get("data", ()) for output in cell["outputs"]
        ):
            cell["metadata"] = {
                **cell["metadata"],
                "mystnb": {"image": {"alt": in_words(section, source)}},
            }
    return json.dumps(content)


shutil.rmtree(HERE / "notebooks", ignore_errors=True)
page = ["# Notebooks"]
for folder, words in SECTIONS.items():
    (HERE / "notebooks" / folder).mkdir()
    entries = []
    for notebook in sorted((COMMITTED / folder).glob("*.ipynb")):
        (HERE / "notebooks" / folder / notebook.name).write_text(
            with_pictures_in_words(notebook)
        )
        entries.append(notebook.relative_to(COMMITTED).with_suffix("").as_posix())
    page += ["", words, "", "```{toctree}", ":maxdepth: 1", "", *entries, "```"]
(HERE / "notebooks" / "index.md").write_text("\n".join([*page, ""]))

# Large classes, including all models, have separate pages. The table on the page of their module links to these.
OWN_PAGES = {
    "data": ("FixedSizeOptions", "FixedSizeCollater", "FlatStore"),
    "loader": (
        "FixedSizeDataLoader",
        "FixedSizeNeighborLoader",
        "FixedSizeLinkLoader",
        "FixedSizeClusterLoader",
        "FixedSizeEventLoader",
        "FixedSizeBatchSampler",
        "TripleLoader",
    ),
    "nn": tuple(
        one
        for one in popgeo.nn.__all__
        for held in [getattr(popgeo.nn, one)]
        if ".models." in getattr(held, "__module__", "")
        and isinstance(held, type)
        and issubclass(held, torch.nn.Module)
    ),
    "ipu": (
        "Options",
        "CompiledStep",
        "Report",
        "Pipeline",
        "IpuTarget",
        "report.figures.Figures",
        "report.pipeline_figures.PipelineFigures",
    ),
    "engine": ("popgeo.StepOptions", "loss_scaling.LossScale"),
    "deploy": ("popgeo.Predictor", "Calculator", "ForceField"),
}
# These classes, which most programs use first, are directly below the table of their module.
MAIN = {
    "popgeo.data": "FixedSizeOptions",
    "popgeo.loader": "FixedSizeDataLoader",
    "popgeo.ipu": "Options",
}
# A class's page does not list the methods of these base classes, but names the base class.
ALSO = {
    torch.nn.Module: "It is a `torch.nn.Module`: `parameters()`, `state_dict()`, `load_state_dict()`, `to()`, `train()`, "
    "`eval()` and `apply()` are torch's.",
    torch.utils.data.DataLoader: "It is a `torch.utils.data.DataLoader`, so trainers that require one accept it.",
    torch.utils.data.Sampler: "It is a `torch.utils.data.Sampler`.",
}


def page_of_class(path: str) -> str:
    """Return a page for one class: a table of its methods, then each method, including methods of base classes."""
    module, _, short = path.rpartition(".")
    held = getattr(import_module(module), short)
    ours = [base for base in held.__mro__ if base.__module__.startswith("popgeo")]
    methods = dict.fromkeys(
        name
        for base in ours
        for name, one in vars(base).items()
        if (name == "__call__" or name[0] != "_")
        and (callable(one) or isinstance(one, classmethod | property))
    )
    documented = [
        name for name in methods if getattr(getattr(held, name), "__doc__", None)
    ]
    in_order = sorted(
        documented, key=lambda name: isinstance(getattr(held, name), property)
    )  # public calls come first
    table = [
        ".. autosummary::",
        "   :nosignatures:",
        "",
        *(f"   ~{path}.{name}" for name in in_order),
        "",
    ]
    also = [words for base, words in ALSO.items() if issubclass(held, base)]
    lines = [
        f"# {short}",
        "",
        *also,
        "",
        "```{eval-rst}",
        *(table if documented else []),
        f".. autoclass:: {path}",
    ]
    return "\n".join(
        [
            *lines,
            "   :special-members: __call__" if "__call__" in methods else "",
            "```",
            "",
        ]
    )


LARGE = set()
for part, classes in OWN_PAGES.items():
    shutil.rmtree(HERE / "api" / part, ignore_errors=True)
    (HERE / "api" / part).mkdir()
    for one in classes:
        path = one if one.startswith("popgeo.") else f"popgeo.{part}.{one}"
        LARGE.add(path.rpartition(".")[2])
        (HERE / "api" / part / f"{path.rpartition('.')[2]}.md").write_text(
            page_of_class(path)
        )


def shorten(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returns: str | None,
) -> Any:
    """Show types by their names, and `...` for a default that is a new object in each call."""
    if signature is None or "<factory>" not in signature:
        return None
    return re.sub(r"~?\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", signature).replace(
        "<factory>", "..."
    ), returns


def open_with_a_table(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Begin a module's page with a table of all its names, the classes with pages of their own first, then the main class."""
    if what != "module":
        return
    large = [
        one
        for one in OWN_PAGES.get(name.rpartition(".")[2], ())
        if "." not in one and hasattr(obj, one)
    ]
    # A package that imports its names lazily lists them in __all__; other packages have them as attributes.
    own = [
        one
        for one in getattr(obj, "__all__", vars(obj))
        if getattr(getattr(obj, one), "__module__", "").startswith("popgeo")
        and not one.startswith("_")
    ]
    names = [f"   {one}" for one in dict.fromkeys([*large, *own])]
    lines += ["", ".. autosummary::", "   :nosignatures:", "", *names, ""]
    if name in MAIN:
        lines += [
            f".. autoclass:: {name}.{MAIN[name]}",
            "   :no-index:",
            "   :no-members:",
            "   :no-inherited-members:",
            "",
            f"   :py:obj:`All methods of {MAIN[name]} <{name}.{MAIN[name]}>` have a page of their own.",
            "",
        ]


def leave_to_its_own_page(
    app: Any, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Skip, on the page of a module, the classes that have a separate page."""
    return (
        True
        if what == "module" and isinstance(obj, type) and name in LARGE
        else None
    )


def setup(app: Any) -> None:
    """Connect the functions of this file to sphinx."""
    app.connect("autodoc-skip-member", leave_to_its_own_page)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", open_with_a_table)
