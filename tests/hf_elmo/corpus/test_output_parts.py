"""Parts of an output: an interrupted run goes on with the same only."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.numpy import load_file

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.corpus import embed_files
from hf_elmo.corpus.embed_files import embed_file
from hf_elmo.corpus.output_parts import delete_folder
from hf_elmo.corpus.rows import Settings
from hf_elmo.onnx import OrtElmoModel

tokenizer = ElmoTokenizer()
SETTINGS = Settings(max_batch_tokens=4)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The bank raised its rates .\n\nA river bank\n" + "word " * 20 + "\n")
    return path


def test_parts_hold_words_as_they_are(tiny_model: ElmoModel, tmp_path: Path) -> None:
    source = io.BytesIO(b'1\t"\\\t_\t_\t_\t_\t0\t_\t_\t_\n')
    output = tmp_path / "vectors.safetensors"
    embed_file(source, output, tiny_model, tokenizer, Settings(input_format="conllu"))
    words = load_file(output / "00000000.safetensors")["sentences"].tobytes()
    assert json.loads(words) == [['"\\']]


def test_a_run_does_not_go_on_with_other_settings(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    with pytest.raises(
        ValueError,
        match=r"other settings: layers 'all' \(now 'top'\), pooling 'none' \(now 'mean'\)\.",
    ):
        embed_file(
            text,
            output,
            tiny_model,
            tokenizer,
            Settings(layers="top", pooling="mean", max_batch_tokens=4),
        )


def test_a_run_does_not_go_on_with_another_model(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    with torch.no_grad():
        tiny_model.token_encoder.projection.bias[0] += 1
    with pytest.raises(ValueError, match="other settings: weights"):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)


def test_a_run_does_not_go_on_with_another_tokenizer(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    with pytest.raises(ValueError, match="other settings: tokenizer"):
        embed_file(text, output, tiny_model, ElmoTokenizer(map_boundary_words=False), SETTINGS)


@pytest.mark.parametrize("field", ["mix_gamma", "cell_clip", "forget_bias"])
def test_a_run_does_not_go_on_with_another_configuration(
    tiny_model: ElmoModel, text: Path, field: str
) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    setattr(tiny_model.config, field, 0.5)
    with pytest.raises(ValueError, match="other settings: config"):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)


def test_a_run_does_not_go_on_with_another_engine(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    tiny_model.backend = "torch"
    start_and_fail(tiny_model, text, output)
    tiny_model.backend = "auto"
    with pytest.raises(ValueError, match=r"settings: backend 'torch' .now 'onnx'.\. Use"):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)


def test_a_run_does_not_go_on_in_another_precision(tiny_folder: Path, text: Path) -> None:
    single, half = (
        ElmoModel.from_pretrained(tiny_folder, dtype=dtype).eval()
        for dtype in (torch.float32, torch.float16)
    )
    single.load_state_dict(half.state_dict())  # equal values
    output = text.with_name("vectors.h5")
    start_and_fail(half, text, output)
    with pytest.raises(ValueError, match="belongs to a run with other settings"):
        embed_file(text, output, single, tokenizer, SETTINGS)


def test_a_run_of_a_version_with_fewer_settings_goes_on(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    path = output.with_name("vectors.h5.partial") / "settings.json"
    settings = json.loads(path.read_text())
    path.write_text(
        json.dumps({k: v for k, v in settings.items() if k not in {"config", "backend"}})
    )
    embed_file(text, output, tiny_model, tokenizer, SETTINGS)
    assert output.exists()


def test_damaged_settings_of_a_run_are_named(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    (output.with_name("vectors.h5.partial") / "settings.json").write_text("")
    with pytest.raises(ValueError, match=r"settings.json, but this file is damaged. Delete the f"):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)


def test_files_of_others_in_the_folder_for_parts_are_kept(
    tiny_model: ElmoModel, text: Path
) -> None:
    folder = text.with_name("vectors.h5.partial")
    folder.mkdir()
    (folder / ".DS_Store").touch()
    (folder / "thesis.txt").write_text("x")
    with pytest.raises(FileExistsError, match=r"but it contains thesis\.txt"):
        embed_file(text, text.with_name("vectors.h5"), tiny_model, tokenizer, SETTINGS)
    assert (folder / "thesis.txt").exists()


def test_parts_without_the_settings_of_their_run_are_kept(
    tiny_model: ElmoModel, text: Path
) -> None:
    folder = text.with_name("vectors.h5.partial")
    folder.mkdir()
    (folder / "00000007.safetensors").write_text("mine")
    with pytest.raises(FileExistsError, match=r"settings\.json, which identifies its parts, is"):
        embed_file(text, text.with_name("vectors.h5"), tiny_model, tokenizer, SETTINGS)
    assert (folder / "00000007.safetensors").read_text() == "mine"


def test_files_that_a_killed_run_was_writing_are_deleted(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    leftover = text.with_name("vectors.h5.partial") / "00000003.safetensors.0.temporary"
    leftover.touch()
    start_and_fail(tiny_model, text, output)
    assert not leftover.exists()


def test_settings_are_deleted_after_the_parts_that_they_identify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("settings.json", "00000000.safetensors"):
        (tmp_path / name).touch()
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda folder: None)  # as if the process is killed here
        delete_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


def test_parts_in_the_folder_of_another_are_not_deleted_through_a_link(
    tiny_model: ElmoModel, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "00000007.safetensors").write_text("mine")
    text.with_name("vectors.h5.partial").symlink_to(tmp_path / "other")
    with pytest.raises(FileExistsError, match="Expected a folder for parts of the output, got the"):
        embed_file(text, text.with_name("vectors.h5"), tiny_model, tokenizer, SETTINGS)
    assert (tmp_path / "other" / "00000007.safetensors").read_text() == "mine"


def test_a_run_does_not_go_on_with_another_quantization(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    rounded = OrtElmoModel.from_model(tiny_model, quantization="int8")
    with pytest.raises(ValueError, match=r"other settings: quantization None .now 'int8'"):
        embed_file(text, output, rounded, tokenizer, SETTINGS)


def test_a_run_does_not_go_on_with_another_dtype(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    message = r"other settings: computation dtype 'float32' \(now 'bfloat16'\)\. Use these"
    with pytest.raises(ValueError, match=message):
        embed_file(text, output, tiny_model.bfloat16(), tokenizer, SETTINGS)


def test_a_run_does_not_go_on_with_another_text(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    text.write_text(text.read_text().replace("river", "rivers", 1))
    with pytest.raises(
        ValueError, match=r"Expected sentence 2 to be 'A river bank', as .* got 'A rivers bank'"
    ):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)


def test_a_run_does_not_go_on_with_less_text(tiny_model: ElmoModel, text: Path) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    text.write_text("The bank raised its rates .\n\n")
    with pytest.raises(ValueError, match=r"Expected sentence 2 to be 'A river bank', .* none"):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)


@pytest.mark.parametrize("num_bytes", [0, 100])
def test_a_damaged_part_is_named(tiny_model: ElmoModel, text: Path, num_bytes: int) -> None:
    output = text.with_name("vectors.h5")
    start_and_fail(tiny_model, text, output)
    part = text.with_name("vectors.h5.partial") / "00000000.safetensors"
    part.write_bytes(part.read_bytes()[:num_bytes])
    with pytest.raises(ValueError, match=r"00000000\.safetensors is damaged: .* Delete this file"):
        embed_file(text, output, tiny_model, tokenizer, SETTINGS)
    part.unlink()
    embed_file(text, output, tiny_model, tokenizer, SETTINGS)


def test_a_run_does_not_go_on_with_other_ids(
    tiny_model: ElmoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(parts: list[Path], output: Path) -> None:
        raise InterruptedError

    source, output = tmp_path / "text.parquet", tmp_path / "vectors.parquet"
    settings = Settings(id_column="id", max_batch_tokens=4)
    parquet.write_table(pa.table({"id": ["a"], "text": ["A river bank"]}), source)
    monkeypatch.setitem(embed_files.WRITERS, "parquet", stop)
    with pytest.raises(InterruptedError):
        embed_file(source, output, tiny_model, tokenizer, settings)
    parquet.write_table(pa.table({"id": ["x"], "text": ["A river bank"]}), source)
    with pytest.raises(ValueError, match=r"'A river bank' \(id 'a'\), .* \(id 'x'\)"):
        embed_file(source, output, tiny_model, tokenizer, settings)


def start_and_fail(model: ElmoModel, text: Path, output: Path) -> None:
    """Leave a run that broke off at the last line."""
    source = io.BytesIO(text.read_bytes() + b"\xff")
    with pytest.raises(ValueError, match="Expected UTF-8"):
        embed_file(source, output, model, tokenizer, SETTINGS)
