"""How Sphinx builds the site: `sphinx-build -W docs build/docs`."""

import importlib.metadata
import re
import shutil
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

from hf_elmo.bundled import BUNDLED_NAME
from hf_elmo.demo.page import write_demo

project = "spacy-elmo"
author = "The authors of spacy-elmo"
release = importlib.metadata.version("spacy-elmo")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "spacy-elmo"
html_copy_source = False
html_show_copyright = False

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
DEMO = "live-demo"  # folder in the site

default_role = "code"  # docstrings mark code with single backticks
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def place_links(app: Sphinx, path: Path, page: str, text: list[str]) -> None:
    """Let the links of an included file lead from the page that includes it."""
    text[0] = re.sub(r"\]\((?!https?:|#)", f"]({path.parent}/", text[0])


def link_files(app: Sphinx, page: str, text: list[str]) -> None:
    """Let links to Markdown beyond the site lead to the file: it is no page here."""
    folder = Path(app.srcdir, page).parent

    def link(match: re.Match[str]) -> str:
        is_page = (folder / match[1]).resolve().is_relative_to(app.srcdir)
        return match[0] if is_page else f"](path:{match[1]})"

    text[0] = re.sub(r"\]\((\.\./[^)#\s]+\.md)(?:#[^)]*)?\)", link, text[0])


def build_demo(app: Sphinx) -> None:
    """Write the demo into the site; without npm or network the site has none."""
    folder = Path(app.outdir, DEMO)
    shutil.rmtree(folder, ignore_errors=True)
    if app.builder.name != "html":
        return
    try:
        write_demo(folder, BUNDLED_NAME)
    except OSError as error:
        logging.getLogger(__name__).info("The site has no demo: %s", error)


def link_demo(app: Sphinx, page: str, text: list[str]) -> None:
    """Put a link to the demo in place of its comment."""
    if Path(app.outdir, DEMO).is_dir():
        link = f'<a href="{DEMO}/index.html">Open the demo</a> (40 MB). Or build it:'
        text[0] = text[0].replace("<!-- live demo -->", link)


def setup(app: Sphinx) -> None:
    """Register what is done beside the extensions."""
    app.connect("builder-inited", build_demo)
    app.connect("source-read", link_demo)
    app.connect("include-read", place_links)
    app.connect("source-read", link_files)
