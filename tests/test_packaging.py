"""What pyproject.toml promises is what is tested and shipped."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OLDEST = dict(
    re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints-oldest.txt").read_text("utf-8"), re.M)
)
EXTRAS = PROJECT["project"]["optional-dependencies"]
TESTED = ("train", "test")  # extras that are tested with the oldest versions
REQUIREMENTS = sorted(
    {*PROJECT["project"]["dependencies"], *chain(*(EXTRAS[name] for name in TESTED))}
)
PACKAGES = ("hf_elmo", "spacy_elmo", "convert")
MAX_BYTES = 20e6  # of the wheel; 15 MB are the bundled weights


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_lower_bounds_are_the_versions_that_are_tested(requirement: str) -> None:
    tested = {normalize(name): version for name, version in OLDEST.items()}
    name, bound = re.match(r"([\w.-]+)>=([\d.]+)", requirement).groups()
    version = tested[normalize(name)]
    assert version == bound or version.startswith(f"{bound}.")


def test_every_package_is_shipped() -> None:
    folders = {path.parent for top in PACKAGES for path in (ROOT / top).rglob("__init__.py")}
    names = {folder.relative_to(ROOT).as_posix().replace("/", ".") for folder in folders}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == names


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and the source distribution from a copy, without what is ignored."""
    source = tmp_path_factory.mktemp("build") / "source"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    code = "from setuptools import build_meta as b; b.build_wheel('dist'); b.build_sdist('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    return source


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(built: Path) -> None:
    (wheel,) = (built / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (path for top in PACKAGES for path in (built / top).rglob("*") if path.is_file())
    assert names == {path.relative_to(built).as_posix() for path in files}
    assert wheel.stat().st_size < MAX_BYTES


@pytest.mark.slow
def test_the_source_distribution_makes_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (archive,) = (built / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    tops = {path.name for path in folder.iterdir()}
    assert {"README.md", "CHANGELOG.md", "LICENSE", "constraints.txt", *PACKAGES} <= tops
    assert not tops & {"tests", "docs", "examples"}
    code = "from setuptools import build_meta as b; b.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    wheels = [next((top / "dist").glob("*.whl")) for top in (built, folder)]
    contents = [zipfile.ZipFile(wheel).namelist() for wheel in wheels]
    assert contents[0] == contents[1]
