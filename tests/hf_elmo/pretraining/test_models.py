import json
from pathlib import Path

import pytest
import torch

from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoModel
from hf_elmo.language_model.models import load_language_model
from hf_elmo.language_model.perplexity import evaluate_text
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.pretraining.models import PRESETS, create_model, load_model_to_continue, read_sizes

OLD = TargetVocabulary(["<S>", "</S>", "<UNK>", "a", "b", "c"])
NEW = TargetVocabulary(["<S>", "</S>", "<UNK>", "c", "d", "a", "e"])

# Weights of the published models without their softmax (allennlp.org/elmo).
PUBLISHED_SIZES = {"small": 13.6e6, "medium": 28.0e6, "original": 93.6e6}


@pytest.fixture
def language_model(tiny_config: ElmoConfig, tmp_path: Path) -> Path:
    """A folder with a biLM, its softmax, tokenizer and target words."""
    torch.manual_seed(0)
    model, tokenizer = create_model(tiny_config, OLD)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "old")
    OLD.save(tmp_path / "old")
    return tmp_path / "old"


@pytest.mark.parametrize(("name", "size"), PUBLISHED_SIZES.items())
def test_presets_have_the_sizes_of_the_published_models(name: str, size: float) -> None:
    with torch.device("meta"):
        model = ElmoModel(ElmoConfig(**PRESETS[name]))

    assert model.num_parameters() == pytest.approx(size, rel=0.005)


def test_mini_fits_in_16_megabytes_in_half_precision() -> None:
    with torch.device("meta"):
        model = ElmoForPreTraining(ElmoConfig(**PRESETS["mini"], vocab_size=19_000))

    assert 2 * model.num_parameters() == pytest.approx(15.6e6, rel=0.005)


def test_training_on_starts_from_the_same_model(language_model: Path) -> None:
    old, _, _ = load_language_model(str(language_model))

    model, _ = load_model_to_continue(str(language_model), OLD)

    assert model.state_dict().keys() == old.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, old.state_dict()[name]), name


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [2, 0, 1]])
def test_labels_and_evaluation_agree_on_the_rows_of_sentence_boundaries(
    order: list[int], tiny_config: ElmoConfig, language_model: Path, tmp_path: Path
) -> None:
    vocabulary = TargetVocabulary([*(OLD.words[row] for row in order), "a", "b"])
    torch.manual_seed(0)
    created = create_model(tiny_config, vocabulary)
    sentences = [["a", "b", "c"], ["b", "a", "a"]]
    for model, tokenizer in (created, load_model_to_continue(str(language_model), vocabulary)):
        with torch.no_grad():
            model.softmax.bias.copy_(torch.arange(5.0))
        batch = tokenizer(
            sentences, is_split_into_words=True, return_tensors="pt", return_attention_mask=True
        )
        labels = torch.tensor([vocabulary.convert_words_to_ids(words) for words in sentences])
        model.train(False).save_pretrained(tmp_path / "new")
        loaded = ElmoForPreTraining.from_pretrained(tmp_path / "new")
        loss = loaded(**batch, labels=labels).loss
        expected = evaluate_text(model, tokenizer, vocabulary, lambda _: iter(sentences)).average
        assert loss.exp().item() == pytest.approx(expected, rel=1e-5)


def test_new_target_words_keep_the_rows_of_old_ones(language_model: Path) -> None:
    old, _, _ = load_language_model(str(language_model))
    with torch.no_grad():
        old.softmax.bias.uniform_()
    old.save_pretrained(language_model)

    model, _ = load_model_to_continue(str(language_model), NEW)

    assert model.softmax.weight.shape == (7, 8)
    for word in ("<S>", "</S>", "<UNK>", "a", "c"):
        new_row, old_row = NEW.words.index(word), OLD.words.index(word)
        assert torch.equal(model.softmax.weight[new_row], old.softmax.weight[old_row])
        assert torch.equal(model.softmax.bias[new_row], old.softmax.bias[old_row])
    assert model.softmax.bias[NEW.words.index("d")] == 0
    for name, value in model.elmo.state_dict().items():
        assert torch.equal(value, old.elmo.state_dict()[name]), name


def test_a_bilm_without_a_softmax_gets_a_new_one(tiny_folder: Path, tiny_model: ElmoModel) -> None:
    model, _ = load_model_to_continue(str(tiny_folder), NEW)

    assert model.softmax.out_features == 7
    for name, value in model.elmo.state_dict().items():
        assert torch.equal(value, tiny_model.state_dict()[name]), name


def test_a_model_in_half_precision_is_trained_on_in_float32(language_model: Path) -> None:
    old, _, _ = load_language_model(str(language_model))
    old.to(torch.bfloat16).save_pretrained(language_model)

    model, _ = load_model_to_continue(str(language_model), NEW)

    assert {value.dtype for value in model.parameters()} == {torch.float32}
    row, old_row = NEW.words.index("c"), OLD.words.index("c")
    assert torch.equal(model.softmax.weight[row], old.softmax.weight[old_row].float())


def test_target_words_of_another_number_than_the_softmax_are_refused(language_model: Path) -> None:
    NEW.save(language_model)

    with pytest.raises(ValueError, match=r"Expected 6 words in target_vocab\.txt of .* got 7"):
        load_model_to_continue(str(language_model), OLD)


def test_a_bilm_without_its_softmax_gets_a_new_one(
    language_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ElmoModel.from_pretrained(language_model).save_pretrained(language_model)

    with caplog.at_level("INFO"):
        model, _ = load_model_to_continue(str(language_model), OLD)

    assert model.softmax.weight.shape[0] == len(OLD)
    assert "target words" not in caplog.text


def test_the_code_beside_an_old_model_is_not_named_beside_the_new_one(language_model: Path) -> None:
    path = language_model / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"auto_map": {"AutoConfig": "configuration_elmo.X"}}))
    model, _ = load_model_to_continue(str(language_model), OLD)
    for config in (model.config, read_sizes(path)):
        config.save_pretrained(language_model / "new")
        assert "auto_map" not in (language_model / "new" / "config.json").read_text()


@pytest.mark.parametrize(("size", "expected"), [(0, 8), (5, 5)])
def test_vectors_of_words_have_the_given_width_or_that_of_the_projection(
    size: int, expected: int, tiny_config: ElmoConfig
) -> None:
    tiny_config.word_embedding_size = size
    model, _ = create_model(tiny_config, OLD, has_characters=False)
    assert model.config.word_embedding_size == expected


def test_sizes_without_characters_need_other_units(tiny_config: ElmoConfig) -> None:
    tiny_config.char_embedding_size = 0
    with pytest.raises(ValueError, match="--units words"):
        create_model(tiny_config, OLD)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"lstm": {"dim": 32}}', "Expected fields of ElmoConfig in .*got lstm"),
        ('{"celll_size": 7, "cell_size": 8}', "got celll_size"),
        ("{", "Expected JSON in"),
        ("[3]", "Expected a JSON object"),
    ],
)
def test_sizes_of_another_format_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_sizes(tmp_path / "options.json")
