"""How sphinx builds the site: pages in Markdown, the reference from docstrings, the notebooks as they are committed."""

import re
import shutil
from pathlib import Path
from typing import Any

import popgeo

HERE = Path(__file__).parent

project = "popgeo"
author = "The popgeo developers"
copyright = "The popgeo developers"
version = release = popgeo.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.mathjax", "myst_nb"]
html_theme = "furo"
html_title = "popgeo"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]

# A name in backticks links to its place in the reference where it has one, and is plain code where it has none.
default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# What users call is shown where they look for it, also if a class of ours has it from another; what torch gives is not.
OF_OTHERS = "DataLoader,Dataset,Module,Sampler,FeatureStore,Enum,int,Exception,dict,list,tuple,object"
autodoc_default_options = {"members": True, "imported-members": True, "inherited-members": OF_OTHERS}
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# Sphinx reads only what lies below this folder, so the notebooks are copied to where their page is.
COMMITTED = HERE.parent / "notebooks"
SECTIONS = {
    "": "As they were last run; the tests run them from top to bottom.",
    "compat": "By the names of PopTorch and PopTorch Geometric, unchanged from how they ran on an IPU:",
}
shutil.rmtree(HERE / "notebooks", ignore_errors=True)
page = ["# Notebooks"]
for folder, words in SECTIONS.items():
    (HERE / "notebooks" / folder).mkdir()
    entries = []
    for notebook in sorted((COMMITTED / folder).glob("*.ipynb")):
        shutil.copy(notebook, HERE / "notebooks" / folder)
        entries.append(notebook.relative_to(COMMITTED).with_suffix("").as_posix())
    page += ["", words, "", "```{toctree}", ":maxdepth: 1", "", *entries, "```"]
(HERE / "notebooks" / "index.md").write_text("\n".join([*page, ""]))


def shorten(app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None) -> Any:
    """Types by their own names, and `...` for a default that is made anew each time, which sphinx cannot read."""
    if signature is None or "<factory>" not in signature:
        return None
    return re.sub(r"~?\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", signature).replace("<factory>", "..."), returns


def open_with_a_table(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Each module's page begins with all its names, and what each is in a sentence."""
    if what == "module":
        own = {one: value for one, value in vars(obj).items() if getattr(value, "__module__", "").startswith("popgeo")}
        names = [f"   {one}" for one in own if not one.startswith("_")]
        lines += ["", ".. autosummary::", "   :nosignatures:", "", *names, ""]


def setup(app: Any) -> None:
    """Called by sphinx."""
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", open_with_a_table)
