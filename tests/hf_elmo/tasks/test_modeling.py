"""What holds of every task model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers.initialization import TORCH_INIT_FUNCTIONS, guard_torch_init_functions

from hf_elmo import ElmoModel
from hf_elmo.inference.layer_cache import LayerCache
from hf_elmo.tasks.modeling import ElmoTaskModel
from hf_elmo.tasks.task import predict
from hf_elmo.tasks.task_inputs import WordInputs

STATIC = {"static_vocab_size": 5, "static_size": 4}
PLACES = ["input", "output", "both", "none"]


def list_scores(output: Any) -> list[Tensor]:
    names = ("logits", "start_logits", "end_logits")
    return [output[name] for name in names if name in output]


@pytest.mark.parametrize("place", PLACES)
def test_a_score_depends_neither_on_padding_nor_on_the_batch(
    task_name: str, place: str, make_case: Callable[..., Any]
) -> None:
    case = make_case(task_name, elmo_at=place, **STATIC)
    case.model.double()
    if case.task.needs_batch_size_one:
        pytest.skip("a batch is one document")
    both = list_scores(case.model(**case.make_batch([0, 1])))
    for row in range(2):
        alone = list_scores(case.model(**case.make_batch([row])))
        for got, expected in zip(both, alone, strict=True):
            width = expected.shape[1]
            is_there = expected[0] > -1e30  # of padded words, no score
            assert_close(got[row, :width][is_there], expected[0][is_there])


@pytest.mark.parametrize("place", PLACES)
def test_a_step_of_training_lowers_the_loss(
    task_name: str, place: str, make_case: Callable[..., Any]
) -> None:
    case = make_case(task_name, elmo_at=place, **STATIC)
    batch = case.make_batch([0] if case.task.needs_batch_size_one else [0, 1])
    before = case.model(**batch).loss
    before.backward()
    for weight in case.model.parameters():
        if weight.requires_grad:
            assert weight.grad is not None
            weight.data -= 1e-3 * weight.grad
    assert case.model(**batch).loss < before


@pytest.mark.parametrize("name", ["entailment", "squad", "coref"])
def test_a_single_text_for_a_model_of_several_gets_a_clear_error(
    name: str, make_case: Callable[..., Any]
) -> None:
    case = make_case(name)
    text = case.inputs.tokenizer("A cat sat.", return_tensors="pt")
    with pytest.raises(ValueError, match=rf"got one\..*elmo-{name}"):
        case.model(**text)


def test_the_bilm_and_fixed_vectors_are_not_trained(
    task_name: str, make_case: Callable[..., Any]
) -> None:
    case = make_case(task_name, trains_static=False, **STATIC)
    assert not case.model.elmo.training
    model = case.model.train()
    case.model(**case.make_batch([0])).loss.backward()
    assert not model.elmo.training
    assert all(weight.grad is None for weight in model.elmo.parameters())
    assert model.static_vectors.weight.grad is None
    assert all(weight.grad is not None for weight in model.features.parameters())


def test_an_unfrozen_bilm_is_trained(task_name: str, make_case: Callable[..., Any]) -> None:
    case = make_case(task_name, elmo={"freeze_bilm": False})
    model = case.model.train()
    model(**case.make_batch([0])).loss.backward()
    assert model.elmo.training
    assert any(weight.grad is not None for weight in model.elmo.parameters())


def test_the_loss_holds_the_penalty_of_each_mix(
    task_name: str, make_case: Callable[..., Any]
) -> None:
    losses = []
    for lambda_ in (0.0, 0.5):
        case = make_case(task_name, elmo_at="both", elmo={"mix_l2": lambda_})
        with torch.no_grad():
            for mix in case.model.features.scalar_mixes:
                mix.weights.copy_(torch.tensor([0.0, 1.0, 2.0]))
        losses.append(case.model(**case.make_batch([0])).loss)
    assert_close(losses[1] - losses[0], torch.tensor(0.5 * 2 * 5.0), rtol=1e-3, atol=1e-4)


def test_layers_from_a_cache_are_those_of_the_bilm(
    task_name: str, make_case: Callable[..., Any]
) -> None:
    case = make_case(task_name, elmo_at="both")
    expected = list_scores(case.model(**case.make_batch([0])))
    tokenizer = case.inputs.tokenizer
    case.inputs = WordInputs(case.model, tokenizer, cache=LayerCache(10_000_000))
    batch = case.make_batch([0])
    assert "elmo_layers" in batch
    for got, want in zip(list_scores(case.model(**batch)), expected, strict=True):
        assert_close(got, want, rtol=1e-3, atol=1e-3)  # layers are kept in 16 bits


@pytest.mark.parametrize("place", PLACES)
def test_a_saved_model_is_loaded_as_it_was(
    task_name: str, place: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    case = make_case(task_name, elmo_at=place, **STATIC)
    with torch.no_grad():  # what loading must not draw anew
        for weight in case.model.parameters():
            weight.mul_(1.3).add_(0.1 if weight.dim() == 1 else 0.0)  # row 0 of tables stays 0
    case.model.save_pretrained(tmp_path)
    loaded = type(case.model).from_pretrained(tmp_path)
    assert loaded.config.id2label == case.model.config.id2label
    assert_close(dict(loaded.state_dict()), dict(case.model.state_dict()), rtol=0, atol=0)
    trained = {name for name, weight in case.model.named_parameters() if weight.requires_grad}
    assert {n for n, weight in loaded.named_parameters() if weight.requires_grad} == trained
    case_inputs = WordInputs(loaded, case.inputs.tokenizer, static_words=["w0", "w1", "w2", "cat"])
    expected = predict(case.task, case.model, case.inputs, case.examples)
    assert predict(case.task, loaded, case_inputs, case.examples) == expected


def test_a_thread_that_loads_another_model_does_not_change_the_weights(
    task_name: str, make_case: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case(task_name)
    case.model.save_pretrained(tmp_path)
    for name, function in TORCH_INIT_FUNCTIONS.items():  # also restores them after the test
        monkeypatch.setattr(torch.nn.init, name, function)
    plain, other = ElmoTaskModel._init_weights, guard_torch_init_functions()
    other.__enter__()  # the guard of the other thread, which is one for the whole process

    def initialize(model: ElmoTaskModel, module: torch.nn.Module) -> None:
        other.gen.close()  # ends the guard
        plain(model, module)

    monkeypatch.setattr(ElmoTaskModel, "_init_weights", initialize)
    loaded = type(case.model).from_pretrained(tmp_path)
    assert_close(dict(loaded.state_dict()), dict(case.model.state_dict()), rtol=0, atol=0)


def test_a_model_card_tells_the_scores_also_of_a_model_that_was_loaded(
    task_name: str, make_case: Callable[..., Any], tmp_path: Path
) -> None:
    case = make_case(task_name)
    case.model.config.scores = {"f1": 0.12345}
    case.model.save_pretrained(tmp_path / "first")
    type(case.model).from_pretrained(tmp_path / "first").save_pretrained(tmp_path / "my-model")
    card = (tmp_path / "my-model" / "README.md").read_text()
    assert "# my-model" in card
    assert "| f1 | 0.1235 |" in card


def test_a_model_card_of_one_s_own_stays(make_case: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("Mine.")
    make_case("ner").model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "Mine."


def test_dropout_of_characters_is_for_training_alone(make_case: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    sizes = {"char_size": 4, "num_char_filters": 6, "char_filter_width": 3, "char_dropout": 0.5}
    characters = make_case("ner", **sizes).model.characters
    ids, mask = torch.randint(1, 200, (1, 2, 20)), torch.ones(1, 2, dtype=torch.bool)
    assert not characters.train()(ids, mask).equal(characters(ids, mask))
    assert characters.eval()(ids, mask).equal(characters(ids, mask))


def test_the_bilm_s_weights_are_copied(
    task_name: str, make_case: Callable[..., Any], tiny_model: ElmoModel
) -> None:
    case = make_case(task_name)
    assert_close(dict(case.model.elmo.state_dict()), dict(tiny_model.state_dict()), rtol=0, atol=0)


def test_predictions_can_be_scored_and_written(
    task_name: str, make_case: Callable[..., Any]
) -> None:
    pytest.importorskip("scorch")
    pytest.importorskip("torchmetrics")
    case = make_case(task_name)
    found = predict(case.task, case.model, case.inputs, case.examples)
    scores = case.task.score(case.examples, found)
    assert 0.0 <= scores[case.task.metric] <= 1.0
    assert [case.task.to_json(*pair) for pair in zip(case.examples, found, strict=True)]


def test_padding_on_the_left_is_refused(make_case: Callable[..., Any]) -> None:
    case = make_case("ner")
    batch = case.make_batch([0, 1])
    with pytest.raises(ValueError, match="Expected words before padding"):
        case.model(**{name: x.flip(1) for name, x in batch.items()})


def test_an_error_names_missing_ids_and_the_pipeline_that_makes_them(
    make_case: Callable[..., Any],
) -> None:
    case = make_case("ner", **STATIC)
    batch = case.make_batch([0])
    del batch["static_ids"]
    with pytest.raises(ValueError, match=r'static_ids, .*pipeline\("elmo-ner"'):
        case.model(**batch)


def test_the_paper_s_preset_trains_a_step(task_name: str, make_case: Callable[..., Any]) -> None:
    case = make_case(task_name, "paper", **STATIC)
    batch = case.make_batch([0])
    before = case.model(**batch).loss
    before.backward()
    for weight in case.model.parameters():
        if weight.requires_grad:
            assert weight.grad is not None
            weight.data -= 1e-4 * weight.grad
    assert case.model(**batch).loss < before
