"""The model card, and what saving and pushing do with it."""

from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from task_cases import make_case

from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoPreTrainedModel,
    ElmoTokenizer,
    loading,
)
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.model_card import make_model_card, quote


def test_metadata_says_what_is_known(tiny_config: ElmoConfig) -> None:
    card = make_model_card(tiny_config, license="cc-by-4.0", language="no", tags=["news"])
    assert ModelCard(card).data.to_dict() == {
        "language": ["no"],  # Norwegian, which YAML would take for a "false"
        "license": "cc-by-4.0",
        "library_name": "transformers",
        "pipeline_tag": "feature-extraction",
        "tags": ["elmo", "spacy", "news"],
    }


def test_licence_and_language_are_never_assumed(tiny_config: ElmoConfig) -> None:
    card = make_model_card(tiny_config)
    assert not {"license", "language"} & ModelCard(card).data.to_dict().keys()
    assert "Not stated" in card


def test_card_has_every_section(tiny_config: ElmoConfig) -> None:
    sections = [
        line for line in make_model_card(tiny_config).splitlines() if line.startswith("## ")
    ]
    names = ["Use", "Sizes", "Training", "Limits", "Licence", "Citation"]
    assert sections == [f"## {name}" for name in names]


def test_card_says_where_the_weights_come_from(tiny_config: ElmoConfig) -> None:
    card = make_model_card(tiny_config, source="From TF.", files=[("weights.hdf5", "ab12")])
    assert "From TF.\n- `weights.hdf5`, SHA-256 `ab12`\n" in card


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bidirectional": False, "hidden_size": None},
        {"use_cell_projection": False, "cell_size": 8},
        {"use_token_projection": False, "projection_size": 28, "hidden_size": 56},
        {"num_hidden_layers": 3, "num_highway_layers": 0},
        {
            "word_vocab_size": 10,
            "word_embedding_size": 5,
            "sentence_start_word_id": 1,
            "sentence_end_word_id": 2,
        },
        {
            "char_embedding_size": 0,
            "word_vocab_size": 10,
            "word_embedding_size": 5,
            "sentence_start_word_id": 1,
            "sentence_end_word_id": 2,
        },
    ],
)
def test_parameters_are_counted_as_in_the_model(
    tiny_config: ElmoConfig, changes: dict[str, Any]
) -> None:
    config = ElmoConfig(**{**tiny_config.to_dict(), **changes})
    number = ElmoModel(config).num_parameters()
    assert f"| Parameters of the biLM | {number:,} |" in make_model_card(config)


@pytest.mark.parametrize(
    ("head", "shape"),
    [
        (ElmoModel, "out.elmo: (2, 5, 16)"),
        (ElmoForTokenClassification, "out.logits: (2, 5, 2)"),
        (ElmoForSequenceClassification, "out.logits: (2, 2)"),
    ],
)
def test_the_cards_example_runs(
    tiny_config: ElmoConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    head: type[ElmoPreTrainedModel],
    shape: str,
) -> None:
    head(tiny_config).save_pretrained(tmp_path / "my-model")
    ElmoTokenizer().save_pretrained(tmp_path / "my-model")
    config = head.from_pretrained(tmp_path / "my-model").config
    card = make_model_card(config, name="my-model")
    example = card.split("```python\n")[1].split("```")[0]
    assert example.rstrip().splitlines()[-1].split("#")[1].strip().startswith(shape)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    name, size = shape.removeprefix("out.").split(": ")
    assert str(tuple(names["out"][name].shape)) == size


def test_saving_writes_no_card(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path)
    assert not (tmp_path / "README.md").exists()


@pytest.mark.parametrize("number", [0, 1])
def test_the_code_on_the_bundled_models_card_runs_as_pasted(number: int) -> None:
    card = (Path(resolve_name(BUNDLED_NAME)) / "README.md").read_text(encoding="utf-8")
    code = card.split("```python\n")[1 + number].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    assert "out.elmo: (2, 5, 256)" in card
    shape = names["out"].elmo.shape if number == 0 else names["doc"].tensor.shape
    assert shape == ((2, 5, 256) if number == 0 else (6, 256))


class FakeHub:
    """A Hub that notes what is uploaded."""

    has_card = False
    calls: list[dict[str, Any]]
    asked: dict[str, Any]

    def __init__(self, token: str | None = None) -> None:
        self.asked["token"] = token

    def create_repo(self, repo_id: str, *, private: bool | None, **_: Any) -> SimpleNamespace:
        self.asked["private"] = private
        return SimpleNamespace(repo_id=f"someone/{repo_id}")

    def create_branch(self, repo_id: str, *, branch: str, **_: Any) -> None:
        self.asked["branch"] = branch

    def file_exists(self, repo_id: str, name: str, *, revision: str | None) -> bool:
        self.asked["card_at"] = revision
        return self.has_card

    def upload_folder(self, **options: Any) -> str:
        folder = Path(options["folder_path"])
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        for pattern in options["ignore_patterns"] or ():
            files.pop(pattern, None)
        self.calls.append({**options, "files": files})
        return "done"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> type[FakeHub]:
    FakeHub.calls, FakeHub.asked, FakeHub.has_card = [], {}, False
    monkeypatch.setattr(loading, "HfApi", FakeHub)
    return FakeHub


def test_pushing_uploads_weights_and_card(tiny_model: ElmoModel, hub: type[FakeHub]) -> None:
    assert tiny_model.push_to_hub("my-model", license="mit", commit_message="Hello") == "done"
    (call,) = hub.calls
    assert set(call["files"]) == {"config.json", "model.safetensors", "README.md"}
    assert call["repo_id"] == "someone/my-model"
    assert call["commit_message"] == "Hello"
    card = ModelCard(call["files"]["README.md"].decode())
    assert card.data.license == "mit"
    assert 'from_pretrained("someone/my-model")' in card.text


def test_pushing_removes_the_weights_of_an_earlier_push_only(
    tiny_model: ElmoModel, hub: type[FakeHub]
) -> None:
    tiny_model.push_to_hub("my-model", max_shard_size="5KB")
    stored = ["model.safetensors", "model-00001-of-00002.safetensors", "model.fp16.safetensors"]
    patterns = hub.calls[0]["delete_patterns"]
    assert [x for x in stored if any(fnmatch(x, pattern) for pattern in patterns)] == stored[:2]


def test_pushing_an_adapter_or_a_variant_keeps_the_weights_that_are_there(
    tiny_model: ElmoModel, hub: type[FakeHub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"push_to_hub": True, "variant": "fp16", "max_shard_size": "5KB"}
    tiny_model.save_pretrained(tmp_path / "saved", **options)
    stored = ["model.safetensors", "model-00001-of-00002.safetensors", "model.fp16.safetensors"]
    patterns = hub.calls[0]["delete_patterns"]
    assert [x for x in stored if any(fnmatch(x, pattern) for pattern in patterns)] == stored[2:]
    assert any(fnmatch(name, "model.fp16-*") for name in hub.calls[0]["files"])

    def save_adapter(self: ElmoModel, folder: str, **_: Any) -> None:
        Path(folder, "adapter_model.safetensors").touch()

    monkeypatch.setattr(ElmoModel, "save_pretrained", save_adapter)
    tiny_model.push_to_hub("my-model")
    assert hub.calls[1]["delete_patterns"] is None


def test_pushing_a_task_model_uploads_its_own_card(
    tiny_model: ElmoModel, hub: type[FakeHub]
) -> None:
    make_case(tiny_model, "ner").model.push_to_hub("my-ner", license="mit")
    card = ModelCard(hub.calls[0]["files"]["README.md"].decode())
    assert card.data.license == "mit"
    assert 'pipeline("elmo-ner", model="someone/my-ner")' in card.text


def test_pushing_keeps_a_card_that_is_there(tiny_model: ElmoModel, hub: type[FakeHub]) -> None:
    hub.has_card = True
    tiny_model.push_to_hub("my-model")
    assert set(hub.calls[0]["files"]) == {"config.json", "model.safetensors"}


def test_a_push_goes_to_the_named_branch_of_a_private_repository(
    tiny_model: ElmoModel, hub: type[FakeHub]
) -> None:
    tiny_model.push_to_hub("my-model", private=True, token="T0P", revision="v2")
    assert hub.asked == {"token": "T0P", "private": True, "branch": "v2", "card_at": "v2"}
    assert hub.calls[0]["revision"] == "v2"


def test_saving_pushes_to_a_private_repository_where_it_is_asked_to(
    tiny_model: ElmoModel, hub: type[FakeHub], tmp_path: Path
) -> None:
    options = {"private": True, "token": "T0P", "revision": "v2"}
    texts = {"license": "mit", "commit_message": "Hello", "commit_description": "World"}
    tiny_model.save_pretrained(tmp_path / "saved", push_to_hub=True, **options, **texts)
    assert hub.asked == {"token": "T0P", "private": True, "branch": "v2", "card_at": "v2"}
    (call,) = hub.calls
    assert ModelCard(call["files"]["README.md"].decode()).data.license == "mit"
    assert [call[name] for name in ("revision", "commit_message")] == ["v2", "Hello"]
    assert call["commit_description"] == "World"


def test_saving_can_push(tiny_model: ElmoModel, hub: type[FakeHub], tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path / "saved", push_to_hub=True)
    tiny_model.save_pretrained(tmp_path / "saved", push_to_hub=True, repo_id="other")
    assert [call["repo_id"] for call in hub.calls] == ["someone/saved", "someone/other"]
    assert (tmp_path / "saved" / "model.safetensors").exists()


def test_saving_pushes_the_weights_that_it_saves(
    tiny_model: ElmoModel, hub: type[FakeHub], tmp_path: Path
) -> None:
    ones = {name: torch.ones_like(x) for name, x in tiny_model.state_dict().items()}
    tiny_model.save_pretrained(
        tmp_path / "saved", state_dict=ones, push_to_hub=True, max_shard_size="1KB"
    )
    saved = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    pushed = {name: x for name, x in hub.calls[0]["files"].items() if name != "README.md"}
    assert pushed == {name: x for name, x in saved.items() if name != "README.md"}
    assert len(pushed) > 3


def test_card_is_that_of_the_models_class(tiny_config: ElmoConfig) -> None:
    config = ElmoConfig(**{**tiny_config.to_dict(), "vocab_size": 7})
    for head, other in ((ElmoForPreTraining, "ElmoModel"), (ElmoModel, "ElmoForPreTraining")):
        config.architectures = [other]
        assert ("softmax" in head(config).make_card()) == (head is ElmoForPreTraining)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("weights.hdf5", "`weights.hdf5`"),
        ("x`\n\n## Licence\n\n[Fetch](http://a)", "`x' ## Licence [Fetch](http://a)`"),
        ("\x1b[2J\u202egreen", "`?[2J?green`"),
        ("", "`(no text)`"),
        ("می\u200cخواهم", "`می\u200cخواهم`"),
        ("a" * 301, f"`{'a' * 300}…`"),
    ],
)
def test_text_of_others_makes_no_section_of_a_card(text: str, quoted: str) -> None:
    assert quote(text) == quoted
