from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from hf_elmo.language_model import windowed_model
from hf_elmo.language_model.vocabulary import TargetVocabulary
from hf_elmo.language_model.window_streams import SentenceStream, WindowCollator, WindowStream
from hf_elmo.language_model.windowed_model import WindowedLanguageModel

VOCABULARY = TargetVocabulary(["<S>", "</S>", "<UNK>", *"abcdef"])


SENTENCES = [list("abcdef"[i : i + 3]) for i in range(6)]


def make_stream(sentences: list[list[str]], **options: Any) -> WindowStream:
    forward, backward = (SentenceStream(lambda _: iter(sentences)) for _ in range(2))
    return WindowStream(forward, backward, VOCABULARY, **options)


def make_batches(window: int, rows: range | None = None) -> Iterator[dict[str, Tensor]]:
    stream = make_stream(SENTENCES, num_rows=4, window=window, rows=rows)
    return map(WindowCollator(ElmoTokenizer()), stream)


@pytest.fixture
def model(tiny_config: ElmoConfig) -> ElmoForPreTraining:
    tiny_config.vocab_size = len(VOCABULARY)
    tiny_config.dropout = 0.0
    torch.manual_seed(0)
    model = ElmoForPreTraining(tiny_config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def test_a_window_of_one_sentence_has_the_losses_of_the_head(model: ElmoForPreTraining) -> None:
    sentence = ["a", "zebra", "b"]
    stream = make_stream([sentence], num_rows=1, window=4)
    runner = WindowedLanguageModel(model)

    forward, backward = runner(**WindowCollator(ElmoTokenizer())(next(stream)))

    batch = ElmoTokenizer()([sentence], is_split_into_words=True, return_tensors="pt")
    out = model(**batch, labels=torch.tensor([VOCABULARY.convert_words_to_ids(sentence)]))
    torch.testing.assert_close((forward.mean() + backward.mean()) / 2, out.loss * 1.0)


def test_the_state_runs_on_from_window_to_window(model: ElmoForPreTraining) -> None:
    short, long = WindowedLanguageModel(model).eval(), WindowedLanguageModel(model).eval()
    stream = make_stream(SENTENCES, num_rows=4, window=6, feed=3)  # as two windows of 3 are fed

    with torch.no_grad():
        parts = [short(**batch)[0] for batch in islice(make_batches(3), 2)]
        whole = long(**WindowCollator(ElmoTokenizer())(next(stream)))[0]

    torch.testing.assert_close(torch.cat(parts), whole)


def test_gradients_end_at_the_start_of_the_window(model: ElmoForPreTraining) -> None:
    runner = WindowedLanguageModel(model)
    batches = list(islice(make_batches(3), 2))

    runner(**batches[0])

    assert runner.state is not None
    assert not any(part.requires_grad for part in runner.state.forward)
    runner(**batches[1])[0].mean().backward()  # would fail if it went back through a freed graph
    model.zero_grad()
    runner(**batches[0])[0].mean().backward()


def test_the_state_is_no_buffer_that_processes_would_share(model: ElmoForPreTraining) -> None:
    runner = WindowedLanguageModel(model)
    runner(**next(make_batches(3)))

    assert list(runner.buffers()) == []
    assert all(name.startswith("model.") for name in runner.state_dict())


def test_negatives_depend_on_the_seed_and_the_window_alone(model: ElmoForPreTraining) -> None:
    def losses(seed: int) -> list[Tensor]:
        runner = WindowedLanguageModel(model, num_negatives=3, seed=seed)
        torch.manual_seed(seed + 17)  # the global source of chance does not matter
        return [runner(**batch)[0] for batch in islice(make_batches(3), 2)]

    first, second = losses(5), losses(5)

    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(first[0], losses(6)[0])


def test_negatives_differ_between_windows_and_directions(
    model: ElmoForPreTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []
    compute = windowed_model.sampled_softmax_losses

    def note(*args: Any, generator: torch.Generator, **options: Any) -> Tensor:
        seeds.append(generator.initial_seed())
        return compute(*args, generator=generator, **options)

    monkeypatch.setattr(windowed_model, "sampled_softmax_losses", note)
    runner = WindowedLanguageModel(model, num_negatives=3)
    for batch in islice(make_batches(3), 2):
        runner(**batch)

    assert len(set(seeds)) == 4


def test_windows_of_an_evaluation_do_not_count(model: ElmoForPreTraining) -> None:
    runner = WindowedLanguageModel(model)
    for is_training in (True, False):
        runner.train(is_training)(**next(make_batches(3)))

    assert runner.num_windows == 1


def test_dropout_is_applied_before_the_softmax_in_training_only(model: ElmoForPreTraining) -> None:
    batch, bias = next(make_batches(3)), model.softmax.bias
    model.config.dropout = 1.0
    nothing = bias.logsumexp(dim=0) - bias[batch["forward_targets"]]

    dropped, kept = (
        WindowedLanguageModel(model).train(is_training)(**batch)[0] for is_training in (True, False)
    )

    torch.testing.assert_close(dropped, nothing)
    assert not torch.allclose(kept, nothing)


def test_evaluation_uses_the_full_softmax(model: ElmoForPreTraining) -> None:
    batch = next(make_batches(3))
    with torch.no_grad():
        sampled = WindowedLanguageModel(model, num_negatives=3).eval()(**batch)[0]
        full = WindowedLanguageModel(model).eval()(**batch)[0]

    assert torch.equal(sampled, full)


@pytest.mark.parametrize("num_negatives", [None, 3])
def test_gradients_of_two_processes_average_to_those_of_one(
    model: ElmoForPreTraining, num_negatives: int | None
) -> None:
    def gradients(rows: range | None) -> dict[str, Tensor]:
        model.zero_grad()
        runner = WindowedLanguageModel(model, num_negatives=num_negatives)
        for batch in islice(make_batches(3, rows), 2):
            losses = runner(**batch)
            torch.stack([loss.mean() for loss in losses if loss is not None]).mean().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    whole, low, high = gradients(None), gradients(range(2)), gradients(range(2, 4))

    for name, gradient in whole.items():
        torch.testing.assert_close((low[name] + high[name]) / 2, gradient, msg=name)


def test_gradient_checkpointing_changes_nothing(model: ElmoForPreTraining) -> None:
    gradients = []
    for checkpoints in (False, True):
        if checkpoints:
            model.activation_checkpointing_enable({"use_reentrant": False})
        model.zero_grad()
        runner = WindowedLanguageModel(model.train())
        runner(**next(make_batches(3)))[0].mean().backward()
        gradients.append(model.elmo.forward_lstm.layers[0].input_weight.grad.clone())

    torch.testing.assert_close(*gradients)


def test_windows_of_boundaries_alone_are_computed(model: ElmoForPreTraining) -> None:
    stream = make_stream([["a"]], num_rows=1, window=1)

    losses = WindowedLanguageModel(model)(**WindowCollator(ElmoTokenizer())(next(stream)))

    assert all(torch.isfinite(loss).all() for loss in losses)
