from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from hf_elmo.language_model.models import load_language_model, load_vocabulary
from hf_elmo.language_model.vocabulary import TargetVocabulary

OLD = TargetVocabulary(["<S>", "</S>", "<UNK>", "a", "b", "c"])
NEW = TargetVocabulary(["<S>", "</S>", "<UNK>", "c", "d", "a", "e"])


@pytest.fixture
def language_model(tiny_config: ElmoConfig, tmp_path: Path) -> Path:
    """A folder with a biLM, its softmax, tokenizer and target words."""
    torch.manual_seed(0)
    tiny_config.vocab_size = len(OLD)
    for part in (ElmoForPreTraining(tiny_config), ElmoTokenizer.from_config(tiny_config)):
        part.save_pretrained(tmp_path / "old")
    OLD.save(tmp_path / "old")
    return tmp_path / "old"


def test_a_language_model_is_loaded_whole(language_model: Path) -> None:
    model, tokenizer, vocabulary = load_language_model(str(language_model))

    assert model.config.vocab_size == len(vocabulary) == 6
    assert not model.training
    assert isinstance(tokenizer, ElmoTokenizer)


def test_a_bilm_without_target_words_is_no_language_model(tiny_folder: Path) -> None:
    assert load_vocabulary(str(tiny_folder)) is None
    with pytest.raises(ValueError, match=r"Expected target_vocab\.txt and a softmax in"):
        load_language_model(str(tiny_folder))


def test_target_words_that_do_not_fit_the_softmax_are_an_error(language_model: Path) -> None:
    NEW.save(language_model)

    with pytest.raises(ValueError, match=r"Expected 6 words in target_vocab\.txt of .* got 7"):
        load_language_model(str(language_model))


def test_a_language_model_that_lacks_a_weight_of_its_bilm_is_refused(language_model: Path) -> None:
    weights = load_file(language_model / "model.safetensors")
    weights.pop(next(name for name in weights if "lstm" in name))
    save_file(weights, language_model / "model.safetensors", {"format": "pt"})

    with pytest.raises(ValueError, match="misses tensors"):
        load_language_model(str(language_model))
