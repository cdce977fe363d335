"""Pipelines of transformers over the models."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import dynamic_module_utils, pipeline

from hf_elmo import (
    ElmoConfig,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoPreTrainedModel,
    ElmoTokenizer,
)
from hf_elmo.pipelines_elmo import ElmoTokenClassificationPipeline

TOLERANCE = {"rtol": 0.0, "atol": 1e-5}  # float32 sums of small models, in another order
TEXTS = ["The bank raised its rates.", "", "A river bank", "x", " "]
NUM_WORDS = [6, 0, 3, 1, 0]


def make_pipeline(
    task: str,
    head: type[ElmoPreTrainedModel],
    config: ElmoConfig,
    folder: Path,
    **options: Any,
) -> Any:
    """A pipeline over a saved model, by the folder's name alone."""
    torch.manual_seed(0)
    labels = {0: "O", 1: "B-X", 2: "I-X"}
    names = {"id2label": labels, "label2id": {name: row for row, name in labels.items()}}
    model = head(ElmoConfig(**{**config.to_dict(), **names}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    model.save_pretrained(folder)
    ElmoTokenizer.from_config(model.config).save_pretrained(folder)
    return pipeline(task, model=str(folder), tokenizer=str(folder), device="cpu", **options)


def test_feature_extraction_gives_the_top_layer(tiny_config: ElmoConfig, tmp_path: Path) -> None:
    pipe = make_pipeline("feature-extraction", ElmoModel, tiny_config, tmp_path)
    features = pipe(TEXTS, return_tensors=True)
    assert [value.shape for value in features] == [(1, number, 16) for number in NUM_WORDS]
    ids = pipe.tokenizer(TEXTS[0], return_tensors="pt")
    with torch.no_grad():  # as the pipeline
        expected = pipe.model(**ids).last_hidden_state
    assert_close(features[0], expected, rtol=0, atol=0)


def test_feature_extraction_in_batches_changes_no_vector(
    tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    pipe = make_pipeline("feature-extraction", ElmoModel, tiny_config, tmp_path)
    alone = pipe(TEXTS, return_tensors=True)
    batched = pipe(TEXTS, return_tensors=True, batch_size=5)
    for one, other in zip(alone, batched, strict=True):
        assert_close(other[:, : one.shape[1]], one, **TOLERANCE)
        assert other[:, one.shape[1] :].abs().sum() == 0


@pytest.mark.parametrize("batch_size", [1, 5])
def test_text_classification_scores_texts(
    tiny_config: ElmoConfig, tmp_path: Path, batch_size: int
) -> None:
    pipe = make_pipeline(
        "text-classification", ElmoForSequenceClassification, tiny_config, tmp_path
    )
    results = pipe(TEXTS, top_k=None, batch_size=batch_size)
    for text, scores in zip(TEXTS, results, strict=True):
        logits = pipe.model(**pipe.tokenizer(text, return_tensors="pt")).logits[0]
        expected = logits.softmax(-1).sort(descending=True)
        assert_close([entry["score"] for entry in scores], expected.values.tolist(), **TOLERANCE)
        names = [pipe.model.config.id2label[row] for row in expected.indices.tolist()]
        assert [entry["label"] for entry in scores] == names


def make_tagger(config: ElmoConfig, folder: Path) -> Any:
    return make_pipeline(
        "token-classification",
        ElmoForTokenClassification,
        config,
        folder,
        pipeline_class=ElmoTokenClassificationPipeline,
    )


@pytest.mark.parametrize("task", ["token-classification", "ner"])
def test_a_saved_tagger_names_its_pipeline(
    tiny_config: ElmoConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))  # the folder is put there
    expected = make_tagger(tiny_config, tmp_path / "tagger")(TEXTS)
    pipe = pipeline(task, str(tmp_path / "tagger"), trust_remote_code=True, device="cpu")
    assert pipe(TEXTS) == expected


def test_a_saved_tagger_refuses_the_stock_pipeline(tiny_config: ElmoConfig, tmp_path: Path) -> None:
    make_tagger(tiny_config, tmp_path)
    with pytest.raises(ValueError, match="set the option `trust_remote_code=True`"):
        pipeline("token-classification", str(tmp_path))


def test_other_models_name_no_pipeline(tiny_config: ElmoConfig) -> None:
    model = ElmoForSequenceClassification(tiny_config)
    assert model.config.custom_pipelines == {}


@pytest.mark.parametrize("batch_size", [1, 5])
def test_token_classification_tags_every_word(
    tiny_config: ElmoConfig, tmp_path: Path, batch_size: int
) -> None:
    pipe = make_tagger(tiny_config, tmp_path)
    results = pipe(TEXTS, ignore_labels=[], batch_size=batch_size)
    assert [len(entities) for entities in results] == NUM_WORDS
    logits = pipe.model(**pipe.tokenizer(TEXTS[0], return_tensors="pt")).logits[0]
    for row, entity in enumerate(results[0]):
        word = ["The", "bank", "raised", "its", "rates", "."][row]
        score, label = logits[row].softmax(-1).max(-1)
        assert entity["word"] == word == TEXTS[0][entity["start"] : entity["end"]]
        assert entity["entity"] == pipe.model.config.id2label[label.item()]
        assert entity["score"] == pytest.approx(score.item(), abs=1e-5)
        assert entity["index"] == row


def test_token_classification_takes_words_as_they_are(
    tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    pipe = make_tagger(tiny_config, tmp_path)
    entities = pipe(["New York", "", "is"], is_split_into_words=True, ignore_labels=[])[0]
    spans = [(entity["word"], entity["start"], entity["end"]) for entity in entities]
    assert spans == [("New York", 0, 8), ("", 9, 9), ("is", 10, 12)]


def test_padding_on_the_left_changes_no_tag(tiny_config: ElmoConfig, tmp_path: Path) -> None:
    pipe = make_tagger(tiny_config, tmp_path)
    sentences = [["A", "river", "bank"], ["x"]]
    options = {"is_split_into_words": True, "ignore_labels": []}
    expected = pipe(sentences, **options)
    pipe.tokenizer.padding_side = "left"
    for batched, alone in zip(pipe(sentences, batch_size=2, **options), expected, strict=True):
        for one, other in zip(batched, alone, strict=True):
            assert one == other | {"score": pytest.approx(other["score"], abs=1e-5)}


@pytest.mark.parametrize("strategy", ["simple", "first", "average", "max"])
def test_token_classification_joins_entities(
    tiny_config: ElmoConfig, tmp_path: Path, strategy: str
) -> None:
    pipe = make_tagger(tiny_config, tmp_path)
    with torch.no_grad():  # each word is O, B-X, I-X by its place, whatever the model says
        pipe.model.forward = lambda input_ids, **_: {
            "logits": torch.eye(3)[[0, 1, 2, 0, 1, 1]][None, : input_ids.shape[1]]
        }
        entities = pipe(TEXTS[0], aggregation_strategy=strategy)
    spans = [(entity["entity_group"], entity["start"], entity["end"]) for entity in entities]
    assert spans == [("X", 4, 15), ("X", 20, 25), ("X", 25, 26)]


def test_zero_shot_classification_says_that_it_needs_pairs(
    tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    pipe = make_pipeline(
        "zero-shot-classification", ElmoForSequenceClassification, tiny_config, tmp_path
    )
    with pytest.raises(TypeError, match=r"text 0. A biLM reads one text at a time, .* for pairs"):
        pipe(TEXTS[0], candidate_labels=["money", "rivers"])


def test_a_tagger_without_characters_has_no_pipeline(tmp_path: Path) -> None:
    words = ["<S>", "</S>", "<UNK>", "a"]
    config = ElmoConfig(
        char_embedding_size=0,
        word_vocab_size=5,
        word_embedding_size=4,
        cell_size=8,
        projection_size=4,
        sentence_start_word_id=1,
        sentence_end_word_id=2,
    )
    model = ElmoForTokenClassification(config)
    with pytest.raises(ValueError, match="Expected a model that reads characters"):
        ElmoTokenClassificationPipeline(
            model=model, tokenizer=ElmoTokenizer.from_config(config, word_vocab=words)
        )
