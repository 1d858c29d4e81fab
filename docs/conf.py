"""Sphinx builds the site from the Markdown pages as they are: `scripts/docs`.

The pages are plain Markdown, which any viewer shows. So two things are made here instead of being written in them: the
contents lists, from the links of each index page, and the removal of links to files outside of `docs/`.
"""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from framework.version import VERSION  # noqa: E402  (after sys.path)

project = "application-worker"
author = "application-worker contributors"
copyright = author  # noqa: A001  (Sphinx's name)
version = release = VERSION

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures: the site holds no inventory of other projects
default_role = "code"

myst_heading_anchors = 4
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"application-worker {VERSION}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_COMMANDS = "example|background|by-hand"
_MARKED = re.compile(rf"^```(?:(text) (output|log|rights=\S+)|(text)|(bash) (?:{_COMMANDS}))$", re.MULTILINE)
"""The first line of a block with a result, a log or commands (``tests/docs/test_examples.py`` lists the marks)."""
_ERROR = re.compile(r"[\w, ]+: ")
_PAGE_LINK = re.compile(r"\]\(([^)#:]+)\.md\)")


def add_contents(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Append to an index page the hidden contents list that Sphinx wants, of the pages that it links."""
    if docname != "index" and not docname.endswith("/index"):
        return
    links = dict.fromkeys(_PAGE_LINK.findall(_FENCE.sub("", source[0])))
    children = [link for link in links if _is_child(link)]
    source[0] += "\n".join(["", "", "```{toctree}", ":hidden:", "", *children, "```", ""])


def name_kinds(_app: Sphinx, _docname: str, source: list[str]) -> None:
    """Give the blocks of results, logs and commands a class of their kind, so that the style sheet tells them from code."""
    source[0] = _MARKED.sub(_with_class, source[0])


def _with_class(fence: re.Match[str]) -> str:
    kind = "commands" if fence[4] else "log" if fence[2] == "log" else "output"
    return f"```{{code-block}} {fence[1] or fence[3] or fence[4]}\n:class: kind-{kind}\n"


def _is_child(link: str) -> bool:
    """Return whether a link leads below the index: a page of its folder, or the index of a folder in it."""
    return not link.startswith("..") and link.count("/") == (1 if link.endswith("/index") else 0)


def unlink_files_outside(app: Sphinx, doctree: nodes.document) -> None:
    """Replace a link to a file outside of `docs/` (a test, a worker) by its text: the site stands alone."""
    for link in list(doctree.findall(addnodes.download_reference)):
        target = (Path(app.srcdir) / app.env.docname).parent / link["reftarget"]
        if not target.resolve().is_relative_to(DOCS):
            link.replace_self(link.children)


def mark_up(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Give a docstring the marks that Sphinx reads: examples are code, `Raises:` with entries `Error: when` is a field list."""
    for index in reversed(range(1, len(lines) - 1)):
        text, gap, code = lines[index - 1 : index + 2]
        if text and not text.startswith(" ") and not gap and code.startswith("    "):
            lines[index:index] = ["", "::"]
    if "Raises:" in lines:
        start = lines.index("Raises:")
        section = [line.strip() for line in lines[start + 1 :]]
        lines[start:] = [f":raises {line}" if _ERROR.match(line) else f"    {line}" if line else "" for line in section]


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the steps above."""
    app.connect("source-read", add_contents)
    app.connect("source-read", name_kinds)
    app.connect("doctree-read", unlink_files_outside, priority=400)  # before the links become downloads
    app.connect("autodoc-process-docstring", mark_up)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
