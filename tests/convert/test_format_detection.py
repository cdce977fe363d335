"""What a user names is found: in archives, folders, archives in folders, and on the Hub."""

import contextlib
import gzip
import json
import shutil
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bilm_tf import evaluate, make_bilm, run_model, write_bilm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from old_checkpoints import make_many_langs, write_allennlp, write_many_langs, write_nlpl
from tensorflow_checkpoint import write_trained

from convert import ConversionError, convert_checkpoint

SENTENCE = ["the", "naïve", "bank"]


def zip_folder(folder: Path, path: Path) -> Path:
    return Path(shutil.make_archive(str(path), "zip", folder.parent, folder.name))


def tar_folder(folder: Path, path: Path) -> Path:
    """Pack a folder's content, without the folder, as AllenNLP does."""
    with tarfile.open(path.with_suffix(".tar.gz"), "w:gz") as file:
        for entry in sorted(folder.iterdir()):
            file.add(entry, entry.name)
    return path.with_suffix(".tar.gz")


def write_hdf5(folder: Path) -> Path:
    write_bilm(folder, make_bilm())
    return folder


KEYS = st.sampled_from(["type", "options_file", "model", "lstm", "dim", "filename", "x"])
WRITERS = {
    "bilm-hdf5": write_hdf5,
    "tensorflow": lambda folder: write_trained(folder, make_bilm()).parent,
    "many-langs": lambda folder: write_many_langs(folder, make_many_langs()),
    "allennlp": lambda folder: write_allennlp(folder, make_bilm()),
    "nlpl": lambda folder: write_nlpl(folder, make_bilm()),
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("pack", [None, zip_folder, tar_folder])
def test_each_format_is_found_in_a_folder_or_archive(
    name: str, pack: Callable[[Path, Path], Path] | None, tmp_path: Path
) -> None:
    source = WRITERS[name](tmp_path / "source")
    if pack is not None:
        source = pack(source, tmp_path / "packed")
    conversion = convert_checkpoint(source, tmp_path / "model")
    assert (conversion.format, conversion.source) == (name, source.name)
    # The archive is the first of the files of which the model card gives the sum.
    assert (conversion.files[0] == source) == (pack is not None)


@pytest.mark.parametrize(
    ("name", "companion"),
    [("many-langs", "vocabulary"), ("allennlp", "vocabulary"), ("tensorflow", "softmax")],
)
def test_what_a_format_does_not_read_is_refused(name: str, companion: str, tmp_path: Path) -> None:
    source = WRITERS[name](tmp_path / "source")
    companions: dict[str, Any] = {companion: source}
    with pytest.raises(ConversionError, match=companion):
        convert_checkpoint(source, tmp_path / "model", **companions)


def test_packed_model_is_the_same_model(tmp_path: Path) -> None:
    source = zip_folder(write_hdf5(tmp_path / "source"), tmp_path / "packed")
    convert_checkpoint(source, tmp_path / "model")
    got = run_model(tmp_path / "model", SENTENCE)
    np.testing.assert_allclose(got, evaluate(make_bilm(), SENTENCE), atol=1e-5, rtol=0)


def test_compressed_weights_are_read_with_the_options_beside_them(tmp_path: Path) -> None:
    weights = write_bilm(tmp_path / "source", make_bilm())
    packed = weights.with_name("weights.hdf5.gz")
    packed.write_bytes(gzip.compress(weights.read_bytes()))
    weights.unlink()
    conversion = convert_checkpoint(packed, tmp_path / "model")
    assert [path.name for path in conversion.files] == [
        "weights.hdf5.gz",
        "weights.hdf5",
        "options.json",
    ]


def test_neighbours_are_those_of_a_link_and_not_of_its_target(tmp_path: Path) -> None:
    weights = write_bilm(tmp_path / "link", make_bilm(cell_clip=0.4))
    (tmp_path / "store").mkdir()
    (tmp_path / "store/abc").write_bytes(gzip.compress(weights.read_bytes()))
    write_bilm(tmp_path / "other", make_bilm(cell_clip=0.3))
    shutil.copy(tmp_path / "other/options.json", tmp_path / "store/options.json")
    weights.unlink()
    packed = tmp_path / "link/weights.hdf5.gz"
    packed.symlink_to("../store/abc")
    conversion = convert_checkpoint(packed, tmp_path / "model")
    assert conversion.config.cell_clip == 0.4


def test_a_compressed_file_is_converted_even_beside_another_checkpoint(tmp_path: Path) -> None:
    weights = write_bilm(tmp_path / "source", make_bilm())
    packed = weights.with_name("weights.hdf5.gz")
    packed.write_bytes(gzip.compress(weights.read_bytes()))
    weights.rename(weights.with_name("a.hdf5"))
    conversion = convert_checkpoint(packed, tmp_path / "model")
    names = ["weights.hdf5.gz", "weights.hdf5", "options.json"]
    assert [path.name for path in conversion.files] == names


def test_a_zipped_folder_has_no_neighbours(tmp_path: Path) -> None:
    source = write_hdf5(tmp_path / "source")
    packed = zip_folder(source, tmp_path / "downloads" / "source")
    shutil.copy(source / "weights.hdf5", packed.with_name("other.hdf5"))
    conversion = convert_checkpoint(packed, tmp_path / "model")
    assert [path.name for path in conversion.files] == [
        "source.zip",
        "weights.hdf5",
        "options.json",
    ]


def test_archive_in_a_folder_is_found(tmp_path: Path) -> None:
    zip_folder(write_hdf5(tmp_path / "source"), tmp_path / "download/model/packed")
    assert convert_checkpoint(tmp_path / "download", tmp_path / "model").format == "bilm-hdf5"


def test_traces_of_file_managers_are_no_models(tmp_path: Path) -> None:
    source = write_hdf5(tmp_path / "source")
    (source / "__MACOSX").mkdir()
    (source / "__MACOSX/._weights.hdf5").touch()
    (source / "._weights.hdf5").touch()
    assert convert_checkpoint(source, tmp_path / "model").format == "bilm-hdf5"


def test_nothing_stays_of_what_was_unpacked(tmp_path: Path) -> None:
    source = zip_folder(write_hdf5(tmp_path / "source"), tmp_path / "packed")
    convert_checkpoint(source, tmp_path / "model")
    with pytest.raises(ConversionError):
        convert_checkpoint(source, tmp_path / "other", options=tmp_path / "packed.zip")
    assert {path.name for path in tmp_path.iterdir()} == {"source", "packed.zip", "model"}


# --- What is refused ---


def test_several_models_are_refused(tmp_path: Path) -> None:
    for name in ("small", "large"):
        write_hdf5(tmp_path / name)
    error = (
        r"expected one checkpoint in it, found large/weights.hdf5, small/weights.hdf5. Choose one"
    )
    with pytest.raises(ConversionError, match=error):
        convert_checkpoint(tmp_path, tmp_path / "model")


def test_a_task_model_is_refused_by_its_type(tmp_path: Path) -> None:
    write_hdf5(tmp_path / "checkpoint-2")
    (tmp_path / "config.json").write_text('{"model_type": "elmo-ner"}')
    with pytest.raises(ConversionError, match="expected a biLM, got a model of the type elmo-ner"):
        convert_checkpoint(tmp_path, tmp_path.with_name("model"))


def test_archive_without_model_is_refused_with_what_it_holds(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as file:
        file.writestr("pytorch_model.bin", b"x")
    error = r"packed.zip: unknown format.*contains: pytorch_model.bin"
    with pytest.raises(ConversionError, match=error):
        convert_checkpoint(tmp_path / "packed.zip", tmp_path / "model")


def test_archives_in_archives_in_archives_are_refused(tmp_path: Path) -> None:
    path = zip_folder(write_hdf5(tmp_path / "source"), tmp_path / "0")
    for depth in ("1", "2"):
        with zipfile.ZipFile(tmp_path / f"{depth}.zip", "w") as file:
            file.write(path, path.name)
        path = tmp_path / f"{depth}.zip"
    with pytest.raises(
        ConversionError, match=r"at most 2 nested archives, got 0.zip in 1.zip in 2.zip\."
    ):
        convert_checkpoint(path, tmp_path / "model")


# --- Settings that anybody may have written ---

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def list_places(node: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """List where something can be replaced in a JSON object."""
    if not isinstance(node, dict):
        return [path]
    return [path, *chain.from_iterable(list_places(node[key], (*path, key)) for key in node)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("bilm-hdf5", "options.json"),
        ("tensorflow", "options.json"),
        ("many-langs", "config.json"),
        ("many-langs", "cnn.json"),
        ("allennlp", "config.json"),
        ("allennlp", "options.json"),
        ("nlpl", "meta.json"),
    ],
)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_fuzzed_settings_raise_only_the_documented_error(
    name: str, file: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / name
    path = WRITERS[name](folder) / file
    content = json.loads(path.read_text())
    place = data.draw(st.sampled_from(list_places(content)))
    value = data.draw(ANYTHING)
    node = content
    for key in place[:-1]:
        node = node[key]
    if place:
        node[place[-1]] = value
    path.write_text(json.dumps(content if place else value))
    with warnings.catch_warnings(), contextlib.suppress(ConversionError):
        warnings.simplefilter("ignore")  # of what is guessed
        convert_checkpoint(folder, folder.with_name("model"), dry_run=True)
