import math
from collections.abc import Callable

import pytest
import torch
from torch.nn.utils import parametrize

from hf_elmo import ElmoConfig, ElmoForPreTraining, ElmoTokenizer
from hf_elmo.language_model.scores import find_substitutes, score_sentences
from hf_elmo.language_model.vocabulary import TargetVocabulary, build_pieces

WORDS = ["the", "bank", "of", "river", "a", "."]
VOCABULARY = TargetVocabulary(["<S>", "</S>", "<UNK>", *WORDS])
SENTENCES = [
    ["the", "bank", "of", "the", "river", "."],
    [],
    ["a", "zebra"],
    ["the", "river", *["the", "bank"] * 40],
]


@pytest.fixture
def model(tiny_config: ElmoConfig) -> ElmoForPreTraining:
    tiny_config.vocab_size = len(VOCABULARY)
    torch.manual_seed(0)
    model = ElmoForPreTraining(tiny_config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


@pytest.mark.parametrize("words", SENTENCES)
def test_scores_are_the_log_probabilities_of_the_pretraining_head(
    model: ElmoForPreTraining, words: list[str]
) -> None:
    (scores,) = score_sentences([words], model, ElmoTokenizer(), VOCABULARY)

    batch = ElmoTokenizer()([words], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        out = model(**batch)
    ids = torch.tensor(VOCABULARY.convert_words_to_ids(["<S>", *words, "</S>"]))
    forward = out.forward_logits[0].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    backward = out.backward_logits[0].log_softmax(-1).gather(1, ids[:-1, None])[:, 0]
    both = (out.forward_logits[0, :-1] + out.backward_logits[0, 1:]).log_softmax(-1)
    torch.testing.assert_close(scores.forward, forward)
    torch.testing.assert_close(scores.backward, backward)
    torch.testing.assert_close(scores.both, both.gather(1, ids[1:-1, None])[:, 0])


def test_words_that_are_not_split_into_pieces_are_refused(model: ElmoForPreTraining) -> None:
    pieces = build_pieces(lambda _: iter([["ab"]]), max_size=5).pieces
    vocabulary = TargetVocabulary(VOCABULARY.words, pieces)
    (scores,) = score_sentences([["the", "<UNK>"]], model, ElmoTokenizer(), vocabulary)
    assert scores.num_unknown == 1
    with pytest.raises(ValueError, match=r"Expected pieces, .* got 'rivers'"):
        next(score_sentences([["the", "rivers"]], model, ElmoTokenizer(), vocabulary))


def test_scores_come_in_order_whatever_the_lengths(model: ElmoForPreTraining) -> None:
    together = list(score_sentences(SENTENCES, model, ElmoTokenizer(), VOCABULARY))

    assert [scores.words for scores in together] == SENTENCES
    for words, scores in zip(SENTENCES, together, strict=True):
        (alone,) = score_sentences([words], model, ElmoTokenizer(), VOCABULARY)
        torch.testing.assert_close(scores.forward, alone.forward)


def test_pseudo_perplexity_is_of_each_word_given_all_others(model: ElmoForPreTraining) -> None:
    (scores,) = score_sentences(SENTENCES[:1], model, ElmoTokenizer(), VOCABULARY)

    assert scores.both is not None
    expected = math.exp(-sum(scores.both.tolist()) / 6)
    assert scores.pseudo_perplexity == pytest.approx(expected)


def test_an_empty_sentence_has_no_pseudo_perplexity(model: ElmoForPreTraining) -> None:
    (scores,) = score_sentences([[]], model, ElmoTokenizer(), VOCABULARY)

    assert math.isnan(scores.pseudo_perplexity)


@pytest.mark.parametrize("direction", ["both", "forward", "backward"])
def test_substitutes_are_the_likeliest_words(model: ElmoForPreTraining, direction: str) -> None:
    words, position = SENTENCES[0], 2

    found = find_substitutes(
        words,
        position,
        model,
        ElmoTokenizer(),
        VOCABULARY,
        count=3,
        direction=direction,  # type: ignore[arg-type]  # one of the three
    )

    scores = []
    for word in WORDS:
        changed = [*words[:position], word, *words[position + 1 :]]
        (result,) = score_sentences([changed], model, ElmoTokenizer(), VOCABULARY)
        shift = 1 if direction == "backward" else 0
        column = getattr(result, direction)
        scores.append((float(column[position + shift]), word))
    expected = sorted(scores, reverse=True)[:3]
    assert [word for word, _ in found] == [word for _, word in expected]
    assert [p for _, p in found] == pytest.approx([p for p, _ in expected], abs=1e-5)


def test_the_word_itself_does_not_change_its_substitutes(model: ElmoForPreTraining) -> None:
    found = [
        find_substitutes(["the", word, "."], 1, model, ElmoTokenizer(), VOCABULARY)
        for word in ("bank", "zebra")
    ]

    assert [word for word, _ in found[0]] == [word for word, _ in found[1]]


def test_special_words_are_no_substitutes(model: ElmoForPreTraining) -> None:
    found = find_substitutes(["the", "."], 0, model, ElmoTokenizer(), VOCABULARY, count=100)

    assert sorted(word for word, _ in found) == sorted(WORDS)


def test_a_sentence_without_words_is_an_error(model: ElmoForPreTraining) -> None:
    with pytest.raises(ValueError, match="Expected a sentence with words, got none"):
        find_substitutes([], 0, model, ElmoTokenizer(), VOCABULARY)


@pytest.mark.parametrize("position", [-1, 2])
def test_a_position_outside_the_sentence_is_an_error(
    model: ElmoForPreTraining, position: int
) -> None:
    with pytest.raises(ValueError, match=f"position from 0 to 1, got {position}"):
        find_substitutes(["the", "."], position, model, ElmoTokenizer(), VOCABULARY)


def test_a_unidirectional_biLM_scores_forward_only(tiny_config: ElmoConfig) -> None:  # noqa: N802
    config = ElmoConfig(
        **{
            **tiny_config.to_diff_dict(),
            "bidirectional": False,
            "hidden_size": None,
            "vocab_size": len(VOCABULARY),
        }
    )
    model = ElmoForPreTraining(config).eval()

    (scores,) = score_sentences(SENTENCES[:1], model, ElmoTokenizer(), VOCABULARY)

    assert scores.backward is None
    assert scores.both is None
    with pytest.raises(ValueError, match="Expected direction forward of a unidirectional"):
        find_substitutes(SENTENCES[0], 0, model, ElmoTokenizer(), VOCABULARY, direction="backward")


def test_an_unknown_direction_is_refused(model: ElmoForPreTraining) -> None:
    for direction in ("Forward", "", True):
        with pytest.raises(ValueError, match="Expected direction forward, backward or both, got"):
            find_substitutes(["a", "b"], 1, model, ElmoTokenizer(), VOCABULARY, direction=direction)  # type: ignore[arg-type]


def test_a_string_is_no_sentence(model: ElmoForPreTraining) -> None:
    with pytest.raises(TypeError, match="Expected a list of words as sentence 0; got 'the cat'"):
        next(score_sentences(["the cat"], model, ElmoTokenizer(), VOCABULARY))


def test_the_vocabulary_of_another_model_is_refused(model: ElmoForPreTraining) -> None:
    other = TargetVocabulary([*VOCABULARY.words, "zebra"])
    with pytest.raises(ValueError, match="Expected a vocabulary of 9 words, one for each row of t"):
        list(score_sentences(SENTENCES, model, ElmoTokenizer(), other))
    with pytest.raises(ValueError, match="Expected a vocabulary of 9 words"):
        find_substitutes(SENTENCES[0], 0, model, ElmoTokenizer(), other)


def hook(softmax: torch.nn.Linear) -> None:
    softmax.register_forward_hook(lambda *_: None)


def parametrize_weight(softmax: torch.nn.Linear) -> None:
    parametrize.register_parametrization(softmax, "weight", torch.nn.Identity())


@pytest.mark.parametrize("change", [hook, parametrize_weight])
def test_a_softmax_that_computes_otherwise_is_refused(
    model: ElmoForPreTraining, change: Callable[[torch.nn.Linear], None]
) -> None:
    change(model.softmax)
    with pytest.raises(ValueError, match="Expected a softmax without adapters, hooks and pruning"):
        list(score_sentences(SENTENCES, model, ElmoTokenizer(), VOCABULARY))


def test_at_least_one_substitute_is_asked_for(model: ElmoForPreTraining) -> None:
    with pytest.raises(ValueError, match="Expected a count of at least 1, got 0"):
        find_substitutes(SENTENCES[0], 0, model, ElmoTokenizer(), VOCABULARY, count=0)
