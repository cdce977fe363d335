"""What pyproject.toml promises is what is tested and shipped."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONSTRAINTS = dict(
    re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
)
EXTRAS = PROJECT["project"]["optional-dependencies"]
REQUIREMENTS = sorted({*PROJECT["project"]["dependencies"], *chain(*EXTRAS.values())})


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_lower_bounds_are_the_versions_that_are_tested(requirement: str) -> None:
    tested = {normalize(name): version for name, version in CONSTRAINTS.items()}
    name, bound = re.match(r"([\w.-]+)(?:\[.*\])?>=([\d.]+)", requirement).groups()
    version = tested[normalize(name)]
    assert version == bound or version.startswith(f"{bound}.")


def test_every_package_is_shipped() -> None:
    tops = ("hf_elmo", "spacy_elmo", "convert")
    folders = {path.parent for top in tops for path in (ROOT / top).rglob("__init__.py")}
    names = {folder.relative_to(ROOT).as_posix().replace("/", ".") for folder in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == names
