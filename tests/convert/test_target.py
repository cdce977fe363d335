"""A target appears whole or not at all, and nothing of the user's is replaced."""

import os
import resource
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from bilm_tf import make_bilm, write_bilm
from typer.testing import CliRunner

from convert import ConversionError, convert_checkpoint
from convert.__main__ import app
from convert.formats import hf_folder
from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from hf_elmo.language_model.vocabulary import write_words


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_target_that_is_there_is_kept(weights: Path, place: Path) -> None:
    (place / "model").write_text("mine")
    with pytest.raises(ConversionError, match=r"is there already\. .* --force"):
        convert_checkpoint(weights, place / "model")
    assert (place / "model").read_text() == "mine"


def test_target_that_is_a_model_is_replaced_by_force(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    (place / "model" / "model-00001-of-00002.safetensors").touch()  # of an older model
    convert_checkpoint(weights, place / "model", force=True)
    assert not (place / "model" / "model-00001-of-00002.safetensors").exists()
    assert [path.name for path in place.iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["notes.txt", "runs", ".git", "config.json.orig"])
def test_model_with_files_of_the_user_is_kept_even_by_force(
    weights: Path, place: Path, name: str
) -> None:
    convert_checkpoint(weights, place / "model")
    (place / "model" / name).mkdir()
    with pytest.raises(ConversionError, match=f"not replaced, because it contains {name}"):
        convert_checkpoint(weights, place / "model", force=True)
    assert (place / "model" / name).exists()


def test_target_never_contains_another_file_of_the_command(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    options = weights.with_name("options.json").rename(place / "model" / "config.json")
    with pytest.raises(ConversionError, match=r"but .*config\.json is read by this command"):
        convert_checkpoint(weights, place / "model", force=True, options=options)
    assert options.exists()


def test_companion_file_of_the_target_is_never_a_source(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "x.hdf5", to="bilm-hdf5")
    options = place / "x_options.json"
    options.write_text(options.read_text() + " ")
    with pytest.raises(ConversionError, match=r"x_options\.json: is read by this command"):
        convert_checkpoint(weights, place / "x.hdf5", to="bilm-hdf5", force=True, options=options)
    assert options.read_text().endswith(" ")


@pytest.mark.parametrize("target", [".", "../place", ".."])
def test_the_current_folder_is_never_the_target(
    weights: Path, place: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(ConversionError, match="does not contain the current folder"):
        convert_checkpoint(weights, target, force=True)


def test_model_with_files_of_the_hub_is_replaced_by_force(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    (place / "model" / ".cache").mkdir()
    (place / "model" / ".gitattributes").touch()
    convert_checkpoint(weights, place / "model", force=True)
    assert not (place / "model" / ".gitattributes").exists()


def test_target_that_is_no_model_is_kept_even_by_force(weights: Path, place: Path) -> None:
    (place / "thesis.txt").write_text("mine")
    with pytest.raises(ConversionError, match="is a folder with something else"):
        convert_checkpoint(weights, place, force=True)
    assert (place / "thesis.txt").read_text() == "mine"


def test_files_beside_the_target_are_kept(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    (place / "x_options.json").write_text("mine")
    with pytest.raises(ConversionError, match=r"x_options.json: is there already without x_weig"):
        convert_checkpoint(place / "model", place / "x_weights.hdf5", to="bilm-hdf5")
    assert (place / "x_options.json").read_text() == "mine"
    assert not (place / "x_weights.hdf5").exists()


def test_files_are_replaced_by_force(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    for _ in range(2):
        convert_checkpoint(place / "model", place / "x.hdf5", to="bilm-hdf5", force=True)
    names = {path.name for path in place.iterdir()}
    assert names == {"model", "x.hdf5", "x_options.json"}


def test_files_of_another_model_are_kept_even_by_force(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    (place / "x_options.json").write_text("mine")
    with pytest.raises(ConversionError, match=r"x_options.json: is there already without x\.hdf5"):
        convert_checkpoint(place / "model", place / "x.hdf5", to="bilm-hdf5", force=True)
    assert (place / "x_options.json").read_text() == "mine"
    assert not (place / "x.hdf5").exists()


def test_source_is_never_its_own_target(weights: Path) -> None:
    content = weights.read_bytes()
    with pytest.raises(ConversionError, match="is not the source"):
        convert_checkpoint(weights, weights, force=True)
    assert weights.read_bytes() == content


def test_folder_with_the_source_is_never_the_target(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    source = (place / "model" / "weights.hdf5").resolve()
    weights.rename(source)
    with pytest.raises(ConversionError, match="does not contain it"):
        convert_checkpoint(source, place / "model", force=True)
    assert source.exists()


def test_folder_for_the_target_must_be_there(weights: Path, place: Path) -> None:
    with pytest.raises(ConversionError, match=r"expected .*missing to be a folder"):
        convert_checkpoint(weights, place / "missing" / "model")


def test_link_to_a_folder_as_target_is_kept(weights: Path, place: Path, tmp_path: Path) -> None:
    (place / "model").symlink_to(tmp_path / "elsewhere")
    convert_checkpoint(weights, place / "model")
    with pytest.raises(ConversionError, match="is there already"):
        convert_checkpoint(weights, place / "model")
    convert_checkpoint(weights, place / "model", force=True)
    assert (place / "model").is_symlink()
    assert (tmp_path / "elsewhere" / "config.json").is_file()


def test_link_to_a_file_as_target_is_replaced(weights: Path, place: Path, tmp_path: Path) -> None:
    (place / "x.hdf5").symlink_to(tmp_path / "elsewhere.hdf5")
    convert_checkpoint(weights, place / "x.hdf5", to="bilm-hdf5", force=True)
    assert not (place / "x.hdf5").is_symlink()
    assert not (tmp_path / "elsewhere.hdf5").exists()


def test_too_little_space_is_said_before_anything_is_written(
    weights: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConversionError, match=r"bytes of free space, there are 100"):
        convert_checkpoint(weights, place / "model")


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(28, "No space left on device"), MemoryError()]
)
def test_nothing_is_left_of_an_interrupted_conversion(
    error: BaseException, weights: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, *others: Any) -> None:
        path.write_text("half")
        raise error

    monkeypatch.setattr(hf_folder, "write_safetensors", write)
    with pytest.raises(type(error)):
        convert_checkpoint(weights, place / "model")
    assert list(place.iterdir()) == []


def test_old_target_is_kept_when_the_new_one_fails(
    weights: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_checkpoint(weights, place / "model")

    def fail(path: Path, target: Path) -> Path:
        if path.parent.name == "new":
            raise OSError("no")
        return rename(path, target)

    rename = Path.rename
    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no"):
        convert_checkpoint(weights, place / "model", force=True)
    assert hf_folder.recognises(place / "model")
    assert [path.name for path in place.iterdir()] == ["model"]


def test_what_a_killed_run_left_is_removed(weights: Path, place: Path) -> None:
    (place / ".model.elmo-convert/new/model").mkdir(parents=True)
    (place / ".model.elmo-convert/unpacked0").mkdir()
    convert_checkpoint(weights, place / "model")
    assert [path.name for path in place.iterdir()] == ["model"]


def test_a_link_instead_of_the_work_folder_is_refused(weights: Path, place: Path) -> None:
    (place / "docs" / "old").mkdir(parents=True)
    (place / ".model.elmo-convert").symlink_to(place / "docs")
    with pytest.raises(
        ConversionError, match="expected a folder for temporary files, found a link"
    ):
        convert_checkpoint(weights, place / "model")
    assert (place / "docs" / "old").is_dir()


def test_files_in_a_cache_folder_that_is_not_the_hubs_are_kept(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    (place / "model" / ".cache" / "huggingface").mkdir(parents=True)
    convert_checkpoint(weights, place / "model", force=True)
    (place / "model" / ".cache" / "mine").mkdir(parents=True)
    with pytest.raises(ConversionError, match=r"because it contains \.cache"):
        convert_checkpoint(weights, place / "model", force=True)
    assert (place / "model" / ".cache" / "mine").is_dir()


def test_an_old_target_that_a_killed_run_put_aside_is_put_back(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    (place / ".model.elmo-convert").mkdir()
    (place / "model").rename(place / ".model.elmo-convert/old")
    with pytest.raises(ConversionError, match="expected a checkpoint"):
        convert_checkpoint(place / "nothing", place / "model", force=True)
    assert [path.name for path in place.iterdir()] == ["model"]
    assert hf_folder.recognises(place / "model")


def test_an_equal_file_that_a_killed_run_moved_is_kept(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    convert_checkpoint(place / "model", place / "x_weights.hdf5", to="bilm-hdf5")
    (place / "x_weights.hdf5").unlink()
    convert_checkpoint(place / "model", place / "x_weights.hdf5", to="bilm-hdf5")
    assert {path.name for path in place.iterdir()} == {"model", "x_weights.hdf5", "x_options.json"}


def test_what_is_read_from_a_folder_is_not_replaced(weights: Path, place: Path) -> None:
    before = {path.name: path.read_bytes() for path in weights.parent.iterdir()}
    for dry in ([], ["--dry-run"]):
        result = run(weights.parent, weights, "--to", "bilm-hdf5", "--force", *dry)
        assert "is read by this command" in " ".join(result.stderr.split())
    assert {path.name: path.read_bytes() for path in weights.parent.iterdir()} == before


def test_options_that_were_found_are_not_replaced(tmp_path: Path, place: Path) -> None:
    bilm = make_bilm(cell_clip=0.4, proj_clip=0.3, max_characters=50)
    weights = write_bilm(tmp_path / "source", bilm)
    (place / "x_options.json").write_bytes(weights.with_name("options.json").read_bytes())
    (place / "x.hdf5").write_bytes(weights.read_bytes())
    (place / "x.th").touch()
    before = (place / "x_options.json").read_bytes()
    with pytest.raises(ConversionError, match=r"x_options.json: (is read|may also belong)"):
        convert_checkpoint(place / "x.hdf5", place / "x.th", to="allennlp", force=True)
    assert (place / "x_options.json").read_bytes() == before


def test_options_of_another_model_are_not_replaced(tmp_path: Path, place: Path) -> None:
    for name, clip in (("a", 0.3), ("b", 0.4)):
        source = write_bilm(tmp_path / name, make_bilm(cell_clip=clip, proj_clip=clip))
        convert_checkpoint(source, tmp_path / f"model-{name}")
    a, b = tmp_path / "model-a", tmp_path / "model-b"
    for target in ("x_weights.hdf5", "x.hdf5"):
        convert_checkpoint(a, place / target, to="bilm-hdf5")
    with pytest.raises(ConversionError, match=r"x_options.json: may also belong to x_weights.hdf5"):
        convert_checkpoint(b, place / "x.hdf5", to="bilm-hdf5", force=True)
    (place / "x_weights.hdf5").unlink()
    convert_checkpoint(b, place / "x.hdf5", to="bilm-hdf5", force=True)
    assert '"cell_clip": 0.4' in (place / "x_options.json").read_text()


def test_options_with_other_names_are_of_other_models(tmp_path: Path, place: Path) -> None:
    for name, clip in (("a", 0.3), ("b", 0.4)):
        bilm = make_bilm(cell_clip=clip, proj_clip=clip, max_characters=50)
        convert_checkpoint(write_bilm(tmp_path / name, bilm), tmp_path / f"model-{name}")
    a, b = tmp_path / "model-a", tmp_path / "model-b"
    convert_checkpoint(a, place / "x_weights.hdf5", to="bilm-hdf5")
    convert_checkpoint(a, place / "x_weights.th", to="allennlp")
    convert_checkpoint(b, place / "x_weights.th", to="allennlp", force=True)
    convert_checkpoint(b, place / "x_weights.hdf5", to="bilm-hdf5", force=True)
    (place / "plain").mkdir()
    convert_checkpoint(a, place / "plain/weights.hdf5", to="bilm-hdf5")
    (place / "plain/other.hdf5").write_bytes((place / "plain/weights.hdf5").read_bytes())
    with pytest.raises(ConversionError, match=r"options.json: may also belong to other.hdf5"):
        convert_checkpoint(b, place / "plain/weights.hdf5", to="bilm-hdf5", force=True)


@pytest.mark.parametrize("name", ["options.json", "vocab.txt"])
@pytest.mark.parametrize("neighbour", ["model.ckpt-1.index", "words_weights.hdf5"])
def test_plain_files_that_another_model_reads_are_not_replaced(
    name: str, neighbour: str, tmp_path: Path, place: Path
) -> None:
    for number in (1, 2):
        bilm = make_bilm(reads_words=True, cell_clip=number / 10)
        convert_checkpoint(write_bilm(tmp_path / str(number), bilm), tmp_path / f"model-{number}")
    convert_checkpoint(tmp_path / "model-1", place / "weights.hdf5", to="bilm-hdf5")
    for companion in ("options.json", "vocab.txt"):  # the other file is the neighbour's own
        if companion != name and neighbour.endswith(".hdf5"):
            shutil.copy(place / companion, place / f"words_{companion}")
    if name == "vocab.txt":
        (place / "vocab.txt").write_text("another\n")
    (place / neighbour).touch()
    before = (place / name).read_bytes()
    source = tmp_path / ("model-1" if name == "vocab.txt" else "model-2")
    with pytest.raises(ConversionError, match=rf"{name}: may also belong to {neighbour}"):
        convert_checkpoint(source, place / "weights.hdf5", to="bilm-hdf5", force=True)
    assert (place / name).read_bytes() == before


def test_a_model_with_a_softmax_is_replaced_by_force(
    tiny_config: ElmoConfig, tmp_path: Path, place: Path
) -> None:
    tiny_config.vocab_size = 4
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = ElmoForPreTraining(tiny_config)
        model.save_pretrained(tmp_path / str(seed))
        ElmoTokenizer.from_config(model.config).save_pretrained(tmp_path / str(seed))
        write_words(tmp_path / str(seed) / "target_vocab.txt", ["<S>", "</S>", "<UNK>", "the"])
        target = place / "weights.hdf5"
        convert_checkpoint(tmp_path / str(seed), target, to="bilm-hdf5", force=True)
    convert_checkpoint(target, tmp_path / "again")
    softmax = ElmoForPreTraining.from_pretrained(tmp_path / "again").softmax.weight
    torch.testing.assert_close(softmax, model.softmax.weight, rtol=0, atol=0)


@contextmanager
def limit_files() -> Iterator[None]:
    """Let no file grow beyond 3,000 bytes, as if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("to", ["huggingface", "bilm-hdf5"])
def test_full_disk_is_an_error_that_leaves_nothing(to: str, weights: Path, place: Path) -> None:
    target = place / ("x.hdf5" if to == "bilm-hdf5" else "model")
    with limit_files():
        result = run(weights, target, "--to", to)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "File too large" in result.stderr
    assert list(place.iterdir()) == []


@pytest.fixture
def default_signals() -> Iterator[None]:
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.usefixtures("default_signals")
def test_nothing_is_left_after_a_termination(
    weights: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminate(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(hf_folder, "write_safetensors", terminate)
    assert run(weights, place / "model").exit_code != 0
    assert list(place.iterdir()) == []
