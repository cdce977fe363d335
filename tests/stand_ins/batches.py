"""Sentences of all sorts as batches of ids, and tiny models with heads."""

from typing import Any

import torch

from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoPreTrainedModel,
    ElmoTokenizer,
)
from hf_elmo.inference.embedding import embed

TOLERANCE = {"rtol": 0.0, "atol": 1e-5}  # float32 sums of small models, in another order


def make_ids(config: ElmoConfig, words: list[str]) -> torch.Tensor:
    """Character ids of words, one cell at a time, shape (tokens, characters)."""
    ids = torch.full((len(words), config.max_characters_per_token), 261)
    for row, word in enumerate(words):
        cells = [259, *(byte + 1 for byte in word.encode()), 260]
        ids[row, : len(cells)] = torch.tensor(cells)
    return ids


def make_batch(
    config: ElmoConfig, sentences: list[list[str]], side: str = "right"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Character ids and mask of sentences, padded."""
    tokens = max(len(words) for words in sentences)
    ids = torch.zeros(len(sentences), tokens, config.max_characters_per_token, dtype=torch.long)
    mask = torch.zeros(len(sentences), tokens, dtype=torch.long)
    for row, words in enumerate(sentences):
        start = 0 if side == "right" else tokens - len(words)
        ids[row, start : start + len(words)] = make_ids(config, words)
        mask[row, start : start + len(words)] = 1
    return ids, mask


SENTENCES = [
    ["The", "bank", "raised", "its", "rates", "."],
    [],
    ["A", "river", "bank"],
    ["", " ", "<pad>", "\N{SNAKE}", "naïve"],
    ["Hello"],
]


CLASSIFIERS = [ElmoForTokenClassification, ElmoForSequenceClassification]


def make_classifier(
    head: type[ElmoPreTrainedModel], config: ElmoConfig, **changes: object
) -> ElmoPreTrainedModel:
    """A classifier over a tiny biLM of which the layers differ."""
    torch.manual_seed(0)
    model = head(ElmoConfig(**{**config.to_dict(), "num_labels": 3, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


HEADS = [ElmoModel, ElmoForPreTraining, *CLASSIFIERS]


def embed_all(
    sentences: list[list[str]], model: ElmoPreTrainedModel, tokenizer: ElmoTokenizer
) -> list[Any]:
    """Compute the vectors of all sentences, in a process that this can be sent to."""
    return list(embed(sentences, model, tokenizer))
