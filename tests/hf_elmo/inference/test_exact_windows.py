"""Batches in windows: within the budget, and equal to one window over all."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from hf_elmo import ElmoModel, ElmoTokenizer
from hf_elmo.inference.exact_windows import WindowRunner

DOCUMENT = [f"word{number * number % 101}" for number in range(300)]
BATCH = [DOCUMENT, DOCUMENT[7:200], DOCUMENT[:1], []]  # longest first
BUDGET = 64


@pytest.fixture
def model(tiny_model: ElmoModel) -> ElmoModel:
    return tiny_model.double()  # so that nothing but a fault makes a difference


def make_runner(model: ElmoModel, max_batch_tokens: int = BUDGET) -> WindowRunner:
    options = max_batch_tokens, model.device, model.dtype
    return WindowRunner(model, ElmoTokenizer(), torch.stack, *options)


def run(model: ElmoModel, max_batch_tokens: int = BUDGET) -> list[torch.Tensor]:
    """All layers of each sentence of the batch, shape (layers, words, hidden_size)."""
    parts: list[list[torch.Tensor]] = [[] for _ in BATCH]
    for row, start, vectors in make_runner(model, max_batch_tokens).run(BATCH):
        assert start == sum(part.shape[1] for part in parts[row])
        parts[row].append(vectors)
    return [torch.cat(part, dim=1) for part in parts]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"characters": "none", "word_vocab": ["<S>", "</S>", "<UNK>"]}, "with input_ids"),
        ({"word_vocab": ["<S>", "</S>", "<UNK>"]}, "without word_input_ids"),
    ],
)
def test_a_tokenizer_of_another_kind_of_model_is_refused(
    model: ElmoModel, options: dict[str, Any], message: str
) -> None:
    rest = (torch.stack, BUDGET, model.device, model.dtype)
    with pytest.raises(ValueError, match=f"Expected a tokenizer {message}"):
        WindowRunner(model, ElmoTokenizer(**options), *rest)


def test_windows_give_the_vectors_of_one_window(model: ElmoModel) -> None:
    assert_close(run(model), run(model, 10_000), rtol=0.0, atol=1e-12)


def test_no_window_is_over_the_budget_and_none_has_room_for_more(
    model: ElmoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_bilm, steps = model.run_bilm, []

    def note(packed: torch.Tensor, *args: Any) -> Any:
        steps.append(len(packed))
        return run_bilm(packed, *args)

    monkeypatch.setattr(model, "run_bilm", note)
    run(model)
    assert sum(steps) == sum(len(words) + 2 for words in BATCH)
    assert max(steps) <= BUDGET
    assert all(count > BUDGET - len(BATCH) for count in steps[:-1])


def test_a_time_step_over_the_budget_runs_nevertheless(model: ElmoModel) -> None:
    assert_close(run(model, 1), run(model, 10_000), rtol=0.0, atol=1e-12)


def test_other_errors_pass(model: ElmoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(model, "run_bilm", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        run(model)


def test_the_tokenizer_of_another_model_is_refused(tiny_model: ElmoModel) -> None:
    tokenizer = ElmoTokenizer(max_characters_per_token=20)
    with pytest.raises(ValueError, match="max_characters_per_token 50, as the model has, got 20"):
        WindowRunner(tiny_model, tokenizer, torch.stack, BUDGET, tiny_model.device, torch.float32)
