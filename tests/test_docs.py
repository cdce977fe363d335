"""The site's pages do what they say: their code runs, their options and links exist."""

import ast
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import make_figures
import printed
import pytest
import spacy
import srsly
import typer

from convert.__main__ import app as convert_app
from convert.catalogue import read_catalogue
from hf_elmo.__main__ import app
from spacy_elmo.architecture import make_elmo_model
from spacy_elmo.layer_cache import make_layer_cache
from spacy_elmo.listener import make_elmo_listener, make_elmo_mix
from spacy_elmo.tok2vec import make_elmo_tok2vec

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ENTRY_POINTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "entry-points"
]
REGISTERED = [target.partition(":")[2] for x in ENTRY_POINTS.values() for target in x.values()]
PAGES = sorted(DOCS.rglob("*.md"))
FIGURES = sorted([*DOCS.rglob("*.svg"), *(ROOT / "examples" / "spacy_train").glob("*.svg")])
COMMAND = re.compile(r"(elmo-convert|python -m hf_elmo (\w+)|torchrun .*-m hf_elmo (\w+)) (.*)")

# Options in the text that are those of other programs, old or new.
OPTIONS_OF_OTHERS = {
    "--onnxruntime-web",
    "--pipeline",
    "--all",
    "--components",
    "--exclude",
    "--paths",
    "--help",
    "--index-url",
    "--input_format",
    "--nproc-per-node",
    "--output_layer",
    "--save_dir",
    "--train_prefix",
    "--training",
    "--vocab_file",
}

# What an entry of spaCy's website/meta/universe.json may have, and where it may stand.
UNIVERSE_FIELDS = {
    "id",
    "title",
    "slogan",
    "description",
    "github",
    "pip",
    "code_example",
    "code_language",
    "url",
    "thumb",
    "image",
    "author",
    "author_links",
    "category",
    "tags",
}
UNIVERSE_CATEGORIES = {"pipeline", "training", "models", "research", "visualizers", "standalone"}


def find_blocks(page: Path, language: str) -> list[str]:
    """Return the code of a page, block by block."""
    return printed.find_blocks(page.read_text(encoding="utf-8"), language)


PAGES_OF_PYTHON = [page for page in PAGES if find_blocks(page, "python")]


def get_name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


@pytest.mark.filterwarnings("ignore:'pin_memory':UserWarning")
@pytest.mark.parametrize("page", PAGES_OF_PYTHON, ids=get_name)
def test_code_of_a_page_prints_what_its_comments_say(page: Path) -> None:
    """The blocks of a page run one after the other."""
    code = "\n".join(find_blocks(page, "python"))
    assert printed.run(code, str(page)) == printed.find_printed(code)


def test_what_is_printed_is_rewritten() -> None:
    text = (
        "```python\nprint(1)  # 2\nprint(\n    3\n)  # 4\n```\nand\n```python\nprint(5)  # 6\n```\n"
    )
    lines = printed.run("\n".join(printed.find_blocks(text, "python")), "page")
    new = printed.rewrite(text, lines)
    assert new == text.replace("# 2", "# 1").replace("# 4", "# 3").replace("# 6", "# 5")
    with pytest.raises(ValueError, match=r"Expected 3 lines, got 1\."):
        printed.rewrite(text, ["1"])


def get_commands() -> list[str]:
    """Return the names of the commands of `python -m hf_elmo`."""
    return list(typer.main.get_command(app).commands)


def find_options(name: str) -> set[str]:
    """Return the options of a command of `python -m hf_elmo`, or of `elmo-convert`."""
    command: Any = typer.main.get_command(convert_app if name == "elmo-convert" else app)
    command = command if name == "elmo-convert" else command.commands[name]
    return {option for parameter in command.params for option in parameter.opts}


def test_the_page_of_commands_lists_every_command() -> None:
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    listed = re.findall(r"^```\{options\} (\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted([*get_commands(), "convert"])


def find_settings(heading: str) -> dict[str, str]:
    """Return the settings and defaults in the table below a heading of the page on spaCy."""
    text = (DOCS / "spacy.md").read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", section, re.MULTILINE)
    return {name: default for names, default in rows for name in re.findall("`(.+?)`", names)}


def show(default: object) -> str:
    """Show a default as `config.cfg` does."""
    required = default is inspect.Parameter.empty
    return "required" if required else f"`{srsly.json_dumps(default)}`".replace('"', "")


@pytest.mark.parametrize(
    ("heading", "make"),
    [
        ("`spacy_elmo.ElmoListener.v1`", make_elmo_listener),
        ("`spacy_elmo.ElmoMix.v1`", make_elmo_mix),
        ("`spacy_elmo.ElmoTok2Vec.v1`", make_elmo_tok2vec),
        ("`spacy_elmo.ElmoModel.v1`", make_elmo_model),
        ("`spacy_elmo.LayerCache.v1`", make_layer_cache),
    ],
)
def test_tables_of_spacy_settings_have_every_default(
    heading: str, make: Callable[..., object]
) -> None:
    parameters = inspect.signature(make).parameters.values()
    assert find_settings(heading) == {x.name: show(x.default) for x in parameters}


def test_the_table_of_the_component_has_every_default() -> None:
    config = spacy.blank("en").get_factory_meta("elmo").default_config
    flat = {name: default for name, default in config.items() if name not in ("model", "mix")}
    flat |= {f"mix.{name}": default for name, default in config["mix"].items()}
    listed = find_settings("Settings")
    assert "ElmoModel.v1" in listed.pop("model")
    assert listed == {name: show(default) for name, default in flat.items()}


@pytest.mark.parametrize("page", PAGES, ids=get_name)
def test_commands_of_a_page_have_the_options_that_it_names(page: Path) -> None:
    for block in find_blocks(page, "sh"):
        for match in COMMAND.finditer(block.replace("\\\n", " ")):
            known = find_options(match[2] or match[3] or match[1])
            words = shlex.split(match[4], comments=True)
            assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("page", PAGES, ids=get_name)
def test_options_that_the_text_of_a_page_names_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    spans = re.findall(r"`([^`\n]+)`", text)
    spans = [span for span in spans if "benchmarks" not in span]
    named = {o for span in spans for o in re.findall(r"(?<![\w-])--[a-z][\w-]+", span)}
    known = set().union(*map(find_options, ["elmo-convert", *get_commands()]))
    assert named - known - OPTIONS_OF_OTHERS == set()


@pytest.mark.parametrize("page", PAGES, ids=get_name)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = {
        (index.parent / f"{entry}.md").resolve()
        for index in PAGES
        for block in find_blocks(index, "{toctree}")
        for entry in block.split("\n\n", 1)[-1].split()
    }
    assert {page.resolve() for page in PAGES} - listed == {(DOCS / "index.md").resolve()}


def find_exported() -> Iterator[str]:
    """Return every name that a package exports by `__all__`."""
    for top in ("hf_elmo", "spacy_elmo", "convert"):
        for path in (ROOT / top).rglob("__init__.py"):
            match = re.search(r"__all__ = (\[.*?\])", path.read_text(encoding="utf-8"), re.DOTALL)
            yield from ast.literal_eval(match[1]) if match else ()


@pytest.mark.parametrize("name", sorted({*find_exported(), *REGISTERED}))
def test_the_api_has_what_is_public(name: str) -> None:
    assert re.search(rf"\b{name}\b", (DOCS / "api.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("maker", sorted({name.partition("/")[0] for name in read_catalogue()}))
def test_the_page_of_published_models_has_every_maker(maker: str) -> None:
    assert f"`{maker}/" in (DOCS / "models.md").read_text(encoding="utf-8")


def test_the_code_of_the_spacy_universe_runs(capsys: pytest.CaptureFixture[str]) -> None:
    entry = json.loads((DOCS / "spacy_universe.json").read_text(encoding="utf-8"))
    assert set(entry) <= UNIVERSE_FIELDS
    assert set(entry["category"]) <= UNIVERSE_CATEGORIES
    exec("\n".join(entry["code_example"]), {})
    assert capsys.readouterr().out == "(7, 256)\n"


@pytest.mark.parametrize("name", make_figures.DRAWN)
def test_figures_that_are_not_computed_are_those_of_their_script(name: str) -> None:
    path = make_figures.FIGURES / f"{name}.svg"
    assert path.read_text(encoding="utf-8") == str(make_figures.DRAWN[name]())


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.name)
def test_figures_have_a_dark_look(path: Path) -> None:
    styles = [e.text for e in ElementTree.parse(path).iter() if e.tag.endswith("}style")]
    assert "prefers-color-scheme: dark" in "".join(styles)


def test_pytorch_is_installed_in_the_tested_version() -> None:
    pinned = re.findall(r"torch==\S+", (ROOT / "constraints.txt").read_text())
    assert re.findall(r"torch==\S+", (ROOT / "docs" / "start.md").read_text()) == pinned[:1]
