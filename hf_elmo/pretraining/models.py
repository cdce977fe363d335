"""Models to train: new models, and existing models for continued training."""

import json
import logging
from pathlib import Path
from typing import Any

import torch

from hf_elmo.character_ids import PADDING_OFFSET
from hf_elmo.configuration_elmo import ElmoConfig
from hf_elmo.language_model.models import load_vocabulary, load_with_softmax
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.modeling_elmo import ElmoModel
from hf_elmo.modeling_heads import ElmoForPreTraining
from hf_elmo.stored_model import load_config
from hf_elmo.tokenization_elmo import ElmoTokenizer

logger = logging.getLogger(__name__)

# Shapes of the published models (allennlp.org/elmo), and of the smaller bundled model.
PRESETS: dict[str, dict[str, Any]] = {
    "mini": {
        "cell_size": 1024,
        "projection_size": 128,
        "num_highway_layers": 1,
        "char_filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256]],
    },
    "small": {"cell_size": 1024, "projection_size": 128, "num_highway_layers": 1},
    "medium": {"cell_size": 2048, "projection_size": 256, "num_highway_layers": 1},
    "original": {},
}


def read_sizes(path: Path) -> ElmoConfig:
    """Read the sizes of a new biLM from a JSON file with fields of `ElmoConfig`.

    Raises:
        ValueError: If the file is not JSON, or has other fields.
    """
    try:
        fields = json.loads(path.read_text("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"Expected JSON in {path}, got: {error}.") from error
    if not isinstance(fields, dict):
        raise ValueError(f"Expected a JSON object with fields of ElmoConfig in {path}.")
    fields.pop("auto_map", None)  # names files beside the other model
    known = {*ElmoConfig().to_dict(), "torch_dtype", "num_labels"}
    others = [name for name in fields if name not in known]
    if others:
        raise ValueError(
            f"Expected fields of ElmoConfig in {path}, such as cell_size and projection_size, got "
            f"{', '.join(others)}."
        )
    return ElmoConfig.from_dict(fields)


def create_model(
    config: ElmoConfig, vocabulary: TargetVocabulary, *, has_characters: bool = True
) -> tuple[ElmoForPreTraining, ElmoTokenizer]:
    """Create an untrained biLM, and its tokenizer.

    Args:
        config: Sizes of the biLM. Without characters, a `word_embedding_size` of 0 is replaced by
            `projection_size`.
        vocabulary: Target words.
        has_characters: True = the biLM reads the bytes of any word; False = it has a vector for
            each target word.

    Raises:
        ValueError: If `has_characters` is true and `config` has no characters or a word lexicon.
    """
    if has_characters and not config.char_embedding_size:
        raise ValueError(
            "Expected sizes of a biLM over characters, got char_embedding_size 0. For a biLM over "
            "words or pieces, pass --units words or --units pieces."
        )
    if not has_characters:
        start, end = vocabulary.boundary_ids
        table = {
            "char_embedding_size": 0,
            "word_vocab_size": len(vocabulary) + PADDING_OFFSET,
            "word_embedding_size": config.word_embedding_size or config.projection_size,
            "sentence_start_word_id": start + PADDING_OFFSET,
            "sentence_end_word_id": end + PADDING_OFFSET,
        }
        config = ElmoConfig.from_dict(config.to_dict() | table)
    config.update(vocabulary.describe())
    words = None if has_characters else vocabulary.words
    tokenizer = ElmoTokenizer.from_config(config, word_vocab=words)
    return ElmoForPreTraining(config), tokenizer


def load_model_to_continue(
    name: str, vocabulary: TargetVocabulary
) -> tuple[ElmoForPreTraining, ElmoTokenizer]:
    """Load a biLM for continued training, with a softmax for the given target words.

    Target words of the loaded model keep their softmax rows. Other rows are initialised randomly.
    Weights in half precision are converted to float32.

    Args:
        name: Folder or Hub name of a biLM, with or without a softmax.
        vocabulary: New target words.

    Raises:
        ValueError: If the model's softmax and target words differ in number.
    """
    config = load_config(name, ElmoConfig)
    vars(config).pop("auto_map", None)  # names files that saving would not write
    bilm = ElmoModel.from_pretrained(name, dtype=torch.float32)
    config.update(vocabulary.describe())
    model = ElmoForPreTraining(config)
    model.elmo.load_state_dict(bilm.state_dict())
    old_words = load_vocabulary(name)
    old_model = None
    if old_words is not None and bilm.config.vocab_size:
        old_model = load_with_softmax(name, len(old_words))
    if old_model is not None and old_words is not None:
        old = old_model.softmax
        known = [row for row, word in enumerate(vocabulary.words) if word in old_words]
        old_rows = old_words.convert_words_to_ids(vocabulary.words[row] for row in known)
        with torch.no_grad():
            model.softmax.weight[known] = old.weight[old_rows]
            model.softmax.bias[known] = old.bias[old_rows]
        logger.info("Kept %d of %d target words.", len(known), len(vocabulary))
    return model, ElmoTokenizer.from_pretrained(name)
