"""The target is complete or not there, other files stay, and a mistake is one line."""

import gzip
import hashlib
import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from bilm_tf import make_bilm, run_model, write_bilm
from old_checkpoints import make_many_langs, write_allennlp, write_many_langs, write_nlpl
from safetensors.torch import load_file, save_file
from tensorflow_checkpoint import trained_variables, write_trained, write_variables
from typer.testing import CliRunner

from convert import ConversionError, convert_checkpoint
from convert.__main__ import app
from hf_elmo import ElmoModel


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# --- The target ---


def test_folder_is_what_save_pretrained_writes(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    assert [path.name for path in place.iterdir()] == ["model"]
    names = {path.name for path in (place / "model").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer_config.json", "README.md"}
    ElmoModel.from_pretrained(place / "model").save_pretrained(place / "saved")
    texts = [(place / folder / "config.json").read_text() for folder in ("model", "saved")]
    assert texts[0] == texts[1]
    (place / "made").mkdir()
    assert (place / "model").stat().st_mode == (place / "made").stat().st_mode


def test_card_names_source_hash_and_text(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model")
    card = (place / "model" / "README.md").read_text(encoding="utf-8")
    assert f"- `weights.hdf5`, SHA-256 `{hashlib.sha256(weights.read_bytes()).hexdigest()}`" in card
    assert "Training text: its tokenisation and case are not recorded." in card
    assert "The model reads UTF-8 bytes as they are, without a change of case or Unicode" in card
    assert "license:" not in card


@pytest.mark.parametrize(
    ("dtype", "relative_error"), [("float32", 0), ("float16", 2**-11), ("bfloat16", 2**-8)]
)
def test_numbers_are_rounded_to_the_type_asked_for(
    dtype: str, relative_error: float, weights: Path, place: Path
) -> None:
    convert_checkpoint(weights, place / "model", dtype=dtype)
    stored = load_file(place / "model" / "model.safetensors")["token_encoder.projection.weight"]
    assert str(stored.dtype) == f"torch.{dtype}"
    expected = make_bilm().variables["CNN_proj/W_proj"].T
    np.testing.assert_allclose(stored.float(), expected, rtol=relative_error, atol=1e-7)
    # Whatever the file's type, the model computes in float32: half precision is slow on CPUs.
    assert ElmoModel.from_pretrained(place / "model").dtype == torch.float32


def test_force_replaces_the_files_that_it_writes_and_no_others(weights: Path, place: Path) -> None:
    convert_checkpoint(weights, place / "model", dtype="float16")
    (place / "model/notes.txt").write_text("mine")
    with pytest.raises(ConversionError, match=r"model: is there already. Replace it with --force"):
        convert_checkpoint(weights, place / "model")
    convert_checkpoint(weights, place / "model", force=True)
    convert_checkpoint(weights, place / "new")
    for path in (place / "new").iterdir():
        if path.name != "README.md":  # names its folder
            assert path.read_bytes() == (place / "model" / path.name).read_bytes()
    assert (place / "model/notes.txt").read_text() == "mine"


@pytest.mark.parametrize("to", ["huggingface", "bilm-hdf5"])
def test_a_file_that_would_be_read_with_the_new_model_is_not_left(
    to: str, weights: Path, place: Path
) -> None:
    words = write_bilm(place / "source", make_bilm(reads_words=True))
    target = place / "x_weights.hdf5"
    convert_checkpoint(words, target, to=to)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with pytest.raises(ConversionError, match=r"vocab.* would be read with the new model"):
        convert_checkpoint(weights, target, to=to, force=True)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before


def test_options_of_another_model_are_not_replaced(weights: Path, place: Path) -> None:
    (place / "x_options.json").write_text("{}")
    with pytest.raises(ConversionError, match=r"x_options.json: is there already"):
        convert_checkpoint(weights, place / "x_weights.hdf5", to="bilm-hdf5")
    assert [path.name for path in place.iterdir()] == ["x_options.json"]


@pytest.mark.parametrize("to", ["huggingface", "bilm-hdf5"])
def test_a_full_disk_leaves_nothing(to: str, weights: Path, place: Path) -> None:
    code = (
        "import resource, sys; from convert.__main__ import run; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)); run()"
    )
    command = [sys.executable, "-c", code, str(weights), str(place / "model"), "--to", to]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in result.stderr
    assert list(place.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 5000


def test_a_mix_that_bilm_tf_cannot_store_is_omitted_with_a_warning(
    weights: Path, place: Path
) -> None:
    convert_checkpoint(weights, place / "model")
    mix = {"weights": [0.0, 0.0, 0.0], "gamma": 1.0, "layer_norm": False}
    (place / "model/scalar_mixes.json").write_text(json.dumps({"a": mix, "b": mix}))
    with pytest.warns(match="cannot store a mix of layers: the mix is omitted"):
        convert_checkpoint(place / "model", place / "back.hdf5", to="bilm-hdf5")


def test_what_bilm_tf_does_not_support_is_refused(place: Path) -> None:
    source = write_many_langs(place / "source", make_many_langs())
    with pytest.raises(ConversionError, match="bilm-tf's format does not support this model"):
        convert_checkpoint(source, place / "back.hdf5", to="bilm-hdf5")


# --- The command ---


def test_command_converts_and_reports(weights: Path, place: Path) -> None:
    result = run(weights, place / "model", "--license", "apache-2.0")
    assert result.exit_code == 0
    assert "2 LSTM layers in both directions" in result.output
    assert "from weights.hdf5, options.json" in result.output
    assert f"Wrote {place / 'model'}." in result.output
    assert "license: apache-2.0" in (place / "model" / "README.md").read_text(encoding="utf-8")


def test_command_lists_the_published_models() -> None:
    result = run("--list-published", "--language", "de")
    assert result.exit_code == 0
    assert result.output.startswith("NAME")
    assert "many-langs/de" in result.output
    result = run("--list-published", "--language", "xx")
    assert (result.exit_code, result.output.startswith("Error: Expected a language")) == (1, True)


# --- Mistakes ---


def write_hdf5(folder: Path) -> Path:
    return write_bilm(folder, make_bilm()).parent


WRITERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "bilm-hdf5": (write_hdf5, "weights.hdf5"),
    "tensorflow": (lambda folder: write_trained(folder, make_bilm()), "model.ckpt-660.index"),
    "nlpl": (lambda folder: write_nlpl(folder, make_bilm()), "model.hdf5"),
    "many-langs": (lambda folder: write_many_langs(folder, make_many_langs()), "encoder.pkl"),
    "allennlp": (lambda folder: write_allennlp(folder, make_bilm()), "weights.th"),
    "huggingface": (
        lambda folder: convert_checkpoint(write_hdf5(folder.with_name("hdf5")), folder),
        "model.safetensors",
    ),
}


def edit_tensors(path: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the tensors of a file, whatever its format is."""
    if path.suffix == ".hdf5":
        with h5py.File(path, "a") as file:
            names: list[str] = []
            file.visit(names.append)
            arrays = {x: file[x][...] for x in names if isinstance(file[x], h5py.Dataset)}
            edit(arrays)
            for name in set(names) - set(arrays):
                if isinstance(file[name], h5py.Dataset):
                    del file[name]
            for name, array in arrays.items():
                file[name][...] = array
    elif path.suffix == ".index":
        arrays = trained_variables(make_bilm())
        edit(arrays)
        write_variables(path.with_suffix(""), arrays)
    elif path.suffix == ".safetensors":
        tensors = load_file(path)
        edit(tensors)
        save_file(tensors, path, {"format": "pt"})
    else:
        tensors = torch.load(path, weights_only=True)
        edit(tensors)
        torch.save(tensors, path)


def put_nan(tensors: dict[str, Any]) -> None:
    name = next(x for x in tensors if "LSTMCell/B" in x or "lstm_cell/bias" in x or "bias" in x)
    tensors[name][0] = float("nan")


def remove_one(tensors: dict[str, Any]) -> None:
    del tensors[next(x for x in tensors if "LSTMCell/B" in x or "cell/bias" in x or "bias" in x)]


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


MISTAKES: dict[str, Callable[[Path], None]] = {
    "a cut file": cut,
    "NaN": lambda path: edit_tensors(path, put_nan),
    "a missing tensor": lambda path: edit_tensors(path, remove_one),
    "a web page": lambda path: path.write_text("<!doctype html><title>Sign in</title>"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", WRITERS)
def test_mistakes_are_one_line_and_leave_no_target(name: str, mistake: str, place: Path) -> None:
    write, file = WRITERS[name]
    write(place / "source")
    MISTAKES[mistake](place / "source" / file)
    before = sorted(place.iterdir())
    result = run(place / "source", place / "model")
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layers": 3}, "Missing key(s) in state_dict"),
        ({"n_layers": 1}, "Unexpected key(s) in state_dict"),
        ({"dim": 7}, "size mismatch"),
        ({"dim": "6"}, "Wrong options"),
        ({"projection_dim": None}, "Wrong options"),
    ],
)
def test_wrong_options_are_one_line(
    change: dict[str, Any], message: str, weights: Path, place: Path
) -> None:
    options = json.loads(weights.with_name("options.json").read_text())
    options["lstm"] |= change
    weights.with_name("options.json").write_text(json.dumps(options))
    result = run(weights, place / "model")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
    assert message in result.stderr
    assert list(place.iterdir()) == []


def test_code_in_a_pickle_is_not_run(place: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, Any]:
            return os.mkdir, (str(place / "evil"),)

    torch.save({"_token_embedder._char_embedding_weights": Evil()}, place / "weights.th")
    result = run(place / "weights.th", place / "model")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.output
    assert [path.name for path in place.iterdir()] == ["weights.th"]


def test_a_number_too_large_for_half_precision_is_refused(weights: Path, place: Path) -> None:
    edit_tensors(weights, lambda arrays: arrays["CNN/b_cnn_0"].fill(1e6))
    with pytest.raises(ConversionError, match=r"finite values in .*bias, in torch.float16"):
        convert_checkpoint(weights, place / "model", dtype="float16")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("_contextualizer._forward_transformer._attention_0.weight", "Transformers or gated CNNs"),
        ("bert_model.encoder.weight", "expected one tensor .*, found bert_model.encoder.weight"),
    ],
)
def test_other_models_are_refused(name: str, message: str, place: Path) -> None:
    torch.save({name: torch.ones(2)}, place / "weights.th")
    with pytest.raises(ConversionError, match=message):
        convert_checkpoint(place / "weights.th", place / "model")


# --- Where a checkpoint is found ---


@pytest.mark.parametrize("name", [x for x in WRITERS if x != "huggingface"])
def test_every_format_is_found_in_an_archive(name: str, place: Path) -> None:
    folder = place / "inner" / "model"
    folder.parent.mkdir()
    WRITERS[name][0](folder)
    (folder / "._weights.hdf5").touch()  # of a file manager
    with zipfile.ZipFile(place / "packed.zip", "w") as file:
        for path in folder.rglob("*"):
            file.write(path, path.relative_to(place / "inner"))
    assert convert_checkpoint(place / "packed.zip", place / "model").format == name
    assert {path.name for path in place.iterdir()} == {"inner", "packed.zip", "model"}


def test_a_file_that_is_compressed_alone_has_its_options_beside_it(
    weights: Path, place: Path
) -> None:
    packed = weights.with_name("weights.hdf5.gz")
    packed.write_bytes(gzip.compress(weights.read_bytes()))
    convert_checkpoint(packed, place / "model")
    assert np.isfinite(run_model(place / "model", ["bank"])).all()


def test_several_models_are_refused(place: Path) -> None:
    for name in ("small", "large"):
        write_hdf5(place / name)
    error = r"expected one checkpoint in it, found large/weights.hdf5, small/weights.hdf5"
    with pytest.raises(ConversionError, match=error):
        convert_checkpoint(place, place / "model")


def test_a_task_model_is_refused(place: Path) -> None:
    write_hdf5(place / "checkpoint-2")
    (place / "config.json").write_text('{"model_type": "elmo-ner"}')
    with pytest.raises(ValueError, match="elmo-ner"):
        convert_checkpoint(place, place / "model")
