"""Run transformers' own model tests on our models: `python tests/conformance/conformance.py`.

The tests stand in the source archive of transformers on the package index, not in the installed
package: they are downloaded for each run, into a temporary folder. Arguments are passed to pytest,
`python tests/conformance/conformance.py -k gradient` for example.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import transformers

SUITE = Path(__file__).with_name("conformance_suite.py")
MODULES = ("tests/test_modeling_common.py", "tests/test_training_mixin.py")
# What the modules import besides: parts of the archive's tests that do not concern us.
STUBS = {
    "tests/__init__.py": "",
    "tests/exporters/__init__.py": "",
    "tests/exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "tests/generation/__init__.py": "",
    "tests/generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "pytest.ini": "[pytest]\naddopts = -p no:warnings\n",  # markers that nobody declares
}


def download(folder: Path) -> None:
    """Put transformers' test modules, of the version that is installed, into a folder.

    Raises:
        subprocess.CalledProcessError: If pip cannot download.
    """
    pip = [sys.executable, "-m", "pip", "--quiet"]
    source = f"transformers=={transformers.__version__}"
    options = ["--no-deps", "--no-binary", "transformers", "--no-build-isolation"]
    subprocess.run([*pip, "download", *options, "--dest", str(folder), source], check=True)
    subprocess.run(
        [*pip, "install", "--no-deps", "--target", str(folder), "parameterized"], check=True
    )
    (archive,) = folder.glob("transformers-*.tar.gz")
    with tarfile.open(archive) as file:
        for name in MODULES:
            member = file.getmember(f"{archive.name.removesuffix('.tar.gz')}/{name}")
            member.name = name
            file.extract(member, folder, filter="data")
    for name, text in STUBS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(folder: Path, *arguments: str) -> int:
    """Run the tests that `download` has put into a folder; give pytest's exit code."""
    paths = [str(folder), str(SUITE.parents[2]), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-c", str(folder / "pytest.ini"), *arguments, str(SUITE)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        check=False,
    ).returncode


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        download(Path(name))
        sys.exit(run(Path(name), *sys.argv[1:]))
