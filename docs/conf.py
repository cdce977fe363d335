"""Configuration of Sphinx: `sphinx-build -W docs build/docs`."""

import importlib.metadata
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import typer
from sphinx.application import Sphinx
from sphinx.util import logging

from convert.__main__ import app as convert_app
from hf_elmo.__main__ import app as hf_elmo_app
from hf_elmo.bundled import BUNDLED_NAME

sys.path.append(str(Path(__file__).parents[1] / "examples" / "demo"))
from build_demo import write_demo

project = "spacy-elmo"
author = "The authors of spacy-elmo"
release = importlib.metadata.version("spacy-elmo")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = "spacy-elmo"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]

myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": True}
DEMO = "live-demo"  # folder in the site

default_role = "code"  # docstrings mark code with single backticks
napoleon_numpy_docstring = False
napoleon_use_ivar = True

DOCS = Path(__file__).parent
INCLUDE = re.compile(r"^```\{include\} (.*)$", re.MULTILINE)
OPTIONS = re.compile(r"^```\{options\} (.*)\n```$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#|path:)([^)#\s]+)")

# The page that includes a file, by the path of the file.
INCLUDING_PAGES = {
    (page.parent / path).resolve(): page
    for page in DOCS.rglob("*.md")
    for path in INCLUDE.findall(page.read_text(encoding="utf-8"))
}


def move_links(text: str, folder: Path, to: Path) -> str:
    """Rewrite the links of a text for another folder; link to pages instead of included files."""

    def move(match: re.Match[str]) -> str:
        path = (folder / match[1]).resolve()
        return "](" + os.path.relpath(INCLUDING_PAGES.get(path, path), to)

    return LINK.sub(move, text)


def make_option_table(name: str) -> str:
    """Describe the options of a command as a Markdown table."""
    command: Any = typer.main.get_command(convert_app if name == "convert" else hf_elmo_app)
    command = command if name == "convert" else command.commands[name]
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for parameter in command.params:
        option = parameter.opts[0]
        if not option.startswith("-"):
            option = parameter.metavar or parameter.name.upper()
        default = parameter.default if parameter.default is not None else parameter.show_default
        if parameter.required or isinstance(default, bool):
            default = "required" if parameter.required else ""
        kind = str(parameter.type_descriptor.annotation)
        choices = re.findall(r"'([^']+)'", kind) if "Literal" in kind else []
        values = f" Values: {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
        meaning = re.sub(r"([|<*_])", r"\\\1", parameter.help)
        meaning = re.sub(r"--[a-z][\w-]+", r"`\g<0>`", meaning) + values
        rows.append(f"| `{option}` | {default} | {meaning} |")
    return "\n".join(rows)


def read_page(app: Sphinx, page: str, text: list[str]) -> None:
    """Fill in the options of commands, and lead links to included files to their pages."""
    folder = Path(app.srcdir, page).parent
    if OPTIONS.search(text[0]):
        app.env.note_reread()  # the options may change while the page does not
    text[0] = OPTIONS.sub(lambda match: make_option_table(match[1]), text[0])
    text[0] = move_links(text[0], folder, folder)


def read_included(app: Sphinx, path: Path, page: str, text: list[str]) -> None:
    """Make the links of an included file relative to the page that includes it."""
    text[0] = move_links(text[0], Path(app.srcdir, path).parent, Path(app.srcdir, page).parent)


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
    """Register the rewriting of pages."""
    app.connect("builder-inited", build_demo)
    app.connect("source-read", link_demo)
    app.connect("include-read", read_included)
    app.connect("source-read", read_page)
