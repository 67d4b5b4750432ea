"""The documentation site. `make docs` builds it from README.md, docs/ and the docstrings into build/site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cordwood

ROOT = Path(__file__).parents[1]

project = "Cordwood"
copyright = "the Cordwood authors, Apache-2.0"  # noqa: A001 - the name that Sphinx reads
version = release = cordwood.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "docs/index"
# The pages are where readers of the repository find them, so that links are the same there and here.
include_patterns = ["*.md", "docs/**"]
# Headings get the anchors that other viewers of Markdown give them.
myst_heading_anchors = 4
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}

html_theme = "furo"
html_title = f"Cordwood {release}"
html_show_sourcelink = False
html_copy_source = False


def first_sentence(page: Path) -> tuple[str, str]:
    """Return the title of a Markdown page and the first sentence below it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    below = text[title.end() :] if title else text
    prose = next((part for part in below.split("\n\n") if re.match(r"\s*[A-Z*`\[]", part)), "")
    plain = re.sub(r"\[([^]]+)\]\([^)]+\)|[*`]", r"\1", " ".join(prose.split()))
    return (title.group(1) if title else page.stem), re.split(r"(?<=\.)\s", plain)[0]


def pages_for_machines() -> str:
    """Return llms.txt: what the project is, and a line for each page."""
    lines = ["# Cordwood", "", f"> {first_sentence(ROOT / 'docs' / 'index.md')[1]}", "", "## Pages", ""]
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        title, sentence = first_sentence(page)
        lines.append(f"- [{title}]({page.relative_to(ROOT).with_suffix('.html')}): {sentence}")
    return "\n".join(lines) + "\n"


def write_pages_for_machines(app: Any, error: Exception | None) -> None:
    """Put llms.txt beside the pages."""
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "llms.txt").write_text(pages_for_machines())
        # The site begins where people look for it.
        (Path(app.outdir) / "index.html").write_text(
            '<!doctype html><meta charset="utf-8">'
            '<meta http-equiv="refresh" content="0; url=docs/index.html">'
            '<title>Cordwood</title><a href="docs/index.html">Cordwood</a>\n'
        )


def setup(app: Any) -> None:
    """Register what happens at the end of a build."""
    app.connect("build-finished", write_pages_for_machines)
