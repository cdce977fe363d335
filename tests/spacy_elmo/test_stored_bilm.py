import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
import torch
from numpy.testing import assert_array_equal
from spacy.language import Language

from hf_elmo import ElmoModel, ElmoTokenizer
from spacy_elmo.architecture import get_shim, make_elmo_model
from spacy_elmo.stored_bilm import LOADING

AddElmo = Callable[..., Any]


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_copied_model_keeps_its_precision(tiny_folder: Path) -> None:
    model = make_elmo_model(str(tiny_folder), dtype="bfloat16", quantization="int8").copy()
    shim = get_shim(model)
    assert (shim.load().model.dtype, shim.quantization) == (torch.bfloat16, "int8")


def test_a_model_of_half_precision_is_trained_in_float32(
    add_elmo: AddElmo, tiny_folder: Path, tiny_model: ElmoModel
) -> None:
    tiny_model.half().save_pretrained(tiny_folder)
    elmo = add_elmo(frozen=False)
    elmo.initialize(lambda: [])
    assert get_shim(elmo.model).load().model.dtype == torch.float32


def test_missing_bundled_model_tells_how_to_name_one(
    nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_elmo.bundled.__file__", "/nowhere/__init__.py")
    nlp.add_pipe("elmo")
    with pytest.raises(FileNotFoundError, match="Name a model's folder"):
        nlp("The bank")


def test_unknown_name_is_an_error_that_says_what_to_do(
    nlp: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    nlp.add_pipe("elmo", config={"model": {"name": str(tmp_path / "absent")}})
    with pytest.raises(OSError, match=r"Found no ELMo model .*absent.*`elmo-convert`"):
        nlp("The bank")


def test_another_kind_of_model_is_an_error_that_names_it(nlp: Language, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    nlp.add_pipe("elmo", config={"model": {"name": str(tmp_path)}})
    with pytest.raises(ValueError, match=r"Expected an ELMo model, got .* of type 'bert'"):
        nlp("The bank")


def test_saving_a_pipeline_again_keeps_other_files(
    nlp: Language, add_elmo: AddElmo, tmp_path: Path
) -> None:
    elmo = add_elmo()
    saved = tmp_path / "elmo"
    folder, backup = saved / "model", saved / "model.old"
    others = ("README.md", "model-old.safetensors", "notes/a.txt")
    for mine in (*(folder / name for name in others), backup / "model.safetensors"):
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("mine")
    (folder / "link").symlink_to("notes")
    (folder / "model-00001-of-00002.safetensors").write_text("of an earlier save")
    for _ in range(2):
        elmo.to_disk(saved)
    assert (folder / "link").is_symlink()
    names = {
        str(path.relative_to(saved)) for path in saved.glob("model*/**/*") if not path.is_dir()
    }
    assert names == {
        *(f"model/{name}" for name in others),
        "model.old/model.safetensors",
        *("model/config.json", "model/model.safetensors", "model/tokenizer_config.json"),
    }


def test_files_that_a_killed_save_put_aside_come_back(add_elmo: AddElmo, tmp_path: Path) -> None:
    elmo = add_elmo()
    elmo.to_disk(tmp_path / "elmo")
    folder = tmp_path / "elmo" / "model"
    (folder / "README.md").write_text("mine")
    folder.rename(folder.with_name(".model.old"))
    folder.with_name(".model.partial").mkdir()
    elmo.to_disk(tmp_path / "elmo")
    assert (folder / "README.md").read_text() == "mine"
    assert {path.name for path in (tmp_path / "elmo").iterdir()} == {"model", "vocab"}


def test_a_link_to_a_shared_bilm_is_replaced_and_the_shared_bilm_stays(
    add_elmo: AddElmo, tmp_path: Path
) -> None:
    elmo = add_elmo()
    elmo.to_disk(tmp_path / "elmo")
    folder, shared = tmp_path / "elmo" / "model", tmp_path / "shared"
    folder.rename(shared)
    folder.symlink_to(shared)
    before = {path.name: path.stat().st_mtime_ns for path in shared.iterdir()}
    for _ in range(2):
        elmo.to_disk(tmp_path / "elmo")
    assert [path.name for path in folder.parent.glob("*model*")] == ["model"]
    assert not folder.is_symlink()
    assert {path.name: path.stat().st_mtime_ns for path in shared.iterdir()} == before
    shutil.rmtree(folder)
    folder.symlink_to("missing")
    elmo.to_disk(tmp_path / "elmo")
    assert not folder.is_symlink()


def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent(
    add_elmo: AddElmo, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = get_shim(add_elmo().model)
    monkeypatch.setattr("spacy_elmo.stored_bilm.limit_fork_threads", lambda: None)
    thread = threading.Thread(target=shim.load, daemon=True)
    with LOADING[os.getpid()]:  # of a thread that loads a model
        monkeypatch.setattr("os.getpid", lambda: -1)
        thread.start()
        thread.join(60)
        assert shim._bilm is not None


def test_stored_weights_are_what_from_pretrained_reads(
    nlp: Language, add_elmo: AddElmo, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    add_elmo()
    nlp.to_disk(tmp_path / "pipeline")
    folder = tmp_path / "pipeline" / "elmo" / "model"
    stored = ElmoModel.from_pretrained(folder).state_dict()
    for name, tensor in tiny_model.state_dict().items():
        torch.testing.assert_close(stored[name], tensor, rtol=0, atol=0)
    assert ElmoTokenizer.from_pretrained(folder).max_characters_per_token == 50


def test_changed_weights_are_an_error_where_they_are_not_stored(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    add_elmo(store_weights=False)
    nlp.to_disk(tmp_path / "pipeline")
    with torch.no_grad():
        tiny_model.token_encoder.projection.weight.add_(1)
    tiny_model.save_pretrained(tiny_folder)
    with pytest.raises(ValueError, match="has changed since this pipeline was saved"):
        spacy.load(tmp_path / "pipeline")


def test_a_changed_configuration_is_an_error_where_weights_are_not_stored(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tmp_path: Path
) -> None:
    add_elmo(store_weights=False)
    nlp.to_disk(tmp_path / "pipeline")
    config = json.loads((tiny_folder / "config.json").read_text())
    (tiny_folder / "config.json").write_text(json.dumps(config | {"mix_gamma": 3.0}))
    with pytest.raises(ValueError, match="has changed since this pipeline was saved"):
        spacy.load(tmp_path / "pipeline")


def test_changed_weights_of_pytorch_are_an_error_where_they_are_not_stored(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    (tiny_folder / "model.safetensors").unlink()
    torch.save(tiny_model.state_dict(), tiny_folder / "pytorch_model.bin")
    add_elmo(store_weights=False)
    nlp.to_disk(tmp_path / "pipeline")
    weights = {name: weight / 2 for name, weight in tiny_model.state_dict().items()}
    torch.save(weights, tiny_folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="has changed since this pipeline was saved"):
        spacy.load(tmp_path / "pipeline")


def test_weights_of_a_saved_pipeline_must_be_stored_again(
    nlp: Language, add_elmo: AddElmo, tmp_path: Path
) -> None:
    add_elmo()
    nlp.to_disk(tmp_path / "pipeline")
    config = {"components": {"elmo": {"store_weights": False}}}
    loaded = spacy.load(tmp_path / "pipeline", config=config)
    with pytest.raises(ValueError, match="Expected store_weights = true: this biLM was read from"):
        loaded.to_disk(tmp_path / "other")


@pytest.mark.parametrize("is_gone", [True, False])
def test_weights_that_changed_since_they_were_read_must_be_stored(
    is_gone: bool,
    nlp: Language,
    add_elmo: AddElmo,
    tiny_folder: Path,
    tiny_model: ElmoModel,
    tmp_path: Path,
) -> None:
    add_elmo(store_weights=False)
    nlp("The bank")
    if is_gone:
        tiny_folder.rename(tmp_path / "elsewhere")
    else:
        with torch.no_grad():
            tiny_model.token_encoder.projection.weight.add_(1)
        tiny_model.save_pretrained(tiny_folder)
    with pytest.raises(ValueError, match="has changed, or is gone, since it was read"):
        nlp.to_disk(tmp_path / "pipeline")


def test_moved_weights_are_found_where_the_configuration_says(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tmp_path: Path
) -> None:
    add_elmo(store_weights=False)
    expected = nlp("The bank").tensor
    nlp.to_disk(tmp_path / "pipeline")
    tiny_folder.rename(tmp_path / "elsewhere")
    config = {"components": {"elmo": {"model": {"name": str(tmp_path / "elsewhere")}}}}
    loaded = spacy.load(tmp_path / "pipeline", config=config)
    assert_array_equal(loaded("The bank").tensor, expected)


def test_sharded_weights_need_not_be_stored(
    nlp: Language, add_elmo: AddElmo, tiny_folder: Path, tiny_model: ElmoModel, tmp_path: Path
) -> None:
    (tiny_folder / "model.safetensors").unlink()
    tiny_model.save_pretrained(tiny_folder, max_shard_size="5KB")
    assert len(list(tiny_folder.glob("*.safetensors"))) > 1
    add_elmo(store_weights=False)
    nlp.to_disk(tmp_path / "pipeline")
    assert spacy.load(tmp_path / "pipeline")("The bank").tensor.shape == (2, 16)
    with torch.no_grad():
        tiny_model.token_encoder.projection.weight.add_(1)
    tiny_model.save_pretrained(tiny_folder, max_shard_size="5KB")
    with pytest.raises(ValueError, match="has changed since this pipeline was saved"):
        spacy.load(tmp_path / "pipeline")


def test_misspelt_name_is_refused_without_asking_the_hub(
    nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hf_elmo.ElmoConfig.get_config_dict", interrupt)
    nlp.add_pipe("elmo", config={"model": {"name": "elmo-mini"}})
    with pytest.raises(OSError, match=r"no ELMo model 'elmo-mini'. Set .* to 'elmo-mini-en'"):
        nlp("The bank")


# Killed while it saves


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    "event",
    ["hf_elmo.ElmoModel.save_pretrained", "hf_elmo.ElmoTokenizer.save_pretrained",
     "pathlib.Path.rename", "spacy_elmo.stored_bilm.shutil.rmtree"],
)  # fmt: skip
def test_killed_save_leaves_a_whole_model_or_says_what_happened(
    nlp: Language,
    add_elmo: AddElmo,
    tmp_path: Path,
    event: str,
    is_first: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_elmo()
    tensor = nlp("The bank").tensor
    nlp.to_disk(tmp_path / "pipeline")
    if is_first:
        shutil.rmtree(tmp_path / "pipeline" / "elmo" / "model")
    with monkeypatch.context() as patch:
        patch.setattr(event, interrupt)
        with pytest.raises(KeyboardInterrupt):
            nlp.to_disk(tmp_path / "pipeline")
    if is_first:
        with pytest.raises(FileNotFoundError, match="was not saved to its end"):
            spacy.load(tmp_path / "pipeline")
    else:
        assert_array_equal(spacy.load(tmp_path / "pipeline")("The bank").tensor, tensor)
    nlp.to_disk(tmp_path / "pipeline")
    assert [path.name for path in (tmp_path / "pipeline" / "elmo").iterdir()] == ["model"]
