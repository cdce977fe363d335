"""Many sentences to vectors: equal to the model's own, in any batch and window."""

import copy
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import dispatch_model
from torch.nn import functional as F
from torch.testing import assert_close

from hf_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from hf_elmo.bundled import BUNDLED_NAME, resolve_name
from hf_elmo.inference.backend import Backend
from hf_elmo.inference.embedding import embed, embed_layers, embed_pieces

TEXT = Path(__file__).parents[2] / "data" / "lighthouse.txt"
TOLERANCE = {"rtol": 0.0, "atol": 1e-5}  # float32 sums of small models, in another order
MIN_COSINE = 0.995  # of each layer in reduced precision, on average over the words
EXACT = {"rtol": 0.0, "atol": 1e-12}  # float64

SENTENCES = [
    ["The", "bank", "raised", "its", "rates", "."],
    [],
    ["A", "river", "bank"],
    ["", " ", "<pad>", "\N{SNAKE}", "naïve"],
    ["Hello"],
    [],
]
DOCUMENT = [f"word{number * number % 101}" for number in range(300)]


tokenizer = ElmoTokenizer()


def run_model(model: ElmoModel, words: list[str]) -> torch.Tensor:
    """All layers of one sentence by the model itself, shape (layers, tokens, hidden_size)."""
    ids = tokenizer([words], is_split_into_words=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return torch.cat(model(ids, output_hidden_states=True).hidden_states)


@pytest.fixture(params=["bidirectional", "unidirectional"])
def model(request: pytest.FixtureRequest, tiny_config: ElmoConfig) -> ElmoModel:
    tiny_config.bidirectional = request.param == "bidirectional"
    tiny_config.hidden_size = 8 * (1 + tiny_config.bidirectional)
    torch.manual_seed(0)
    model = ElmoModel(tiny_config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.double()  # so that nothing but a fault makes a difference


@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_an_offloaded_model_gives_the_same_vectors(
    place: str, model: ElmoModel, tmp_path: Path
) -> None:
    expected = list(embed(SENTENCES, model, tokenizer))
    device_map = {"token_encoder": place, "forward_lstm": "disk", "backward_lstm": "cpu"}
    if not model.config.bidirectional:
        del device_map["backward_lstm"]
    offloaded = dispatch_model(model, device_map, "cpu", offload_dir=tmp_path)
    for one, other in zip(embed(SENTENCES, offloaded, tokenizer), expected, strict=True):
        np.testing.assert_allclose(one, other, **EXACT)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_reduced_precision_is_near_float32_on_real_text(precision: str) -> None:
    name = resolve_name(BUNDLED_NAME)
    model, lines = ElmoModel.from_pretrained(name), TEXT.read_text(encoding="utf-8").splitlines()
    expected, actual = (
        torch.cat(
            list(
                embed_layers(map(str.split, lines), reduced, tokenizer, quantization=quantization)
            ),
            dim=1,
        ).float()
        for reduced, quantization in (
            (copy.deepcopy(model), None),
            (model, "int8") if precision == "int8" else (model.bfloat16(), None),
        )
    )
    assert not torch.equal(actual[1:], expected[1:])
    assert (F.cosine_similarity(actual, expected, dim=-1).mean(dim=1) > MIN_COSINE).all()


@pytest.mark.parametrize("max_batch_tokens", [1, 7, 40, 2048])
@pytest.mark.parametrize("look_ahead", [1, 12, None])
def test_layers_are_the_models_own_in_any_batch_and_window(
    model: ElmoModel, max_batch_tokens: int, look_ahead: int | None
) -> None:
    sentences = [*SENTENCES, DOCUMENT, *SENTENCES]
    results = list(
        embed_layers(
            sentences, model, tokenizer, max_batch_tokens=max_batch_tokens, look_ahead=look_ahead
        )
    )
    assert len(results) == len(sentences)
    for words, result in zip(sentences, results, strict=True):
        assert_close(result, run_model(model, words), **EXACT)


def test_many_long_sentences_run_side_by_side_in_windows(tiny_model: ElmoModel) -> None:
    sentences = [DOCUMENT[start:] for start in range(0, 200, 10)]
    results = embed_layers(sentences, tiny_model, tokenizer, max_batch_tokens=64, look_ahead=10_000)
    for words, result in zip(sentences, results, strict=True):
        assert_close(result, run_model(tiny_model, words), **TOLERANCE)


@pytest.mark.parametrize("characters", ["bytes", "none"])
def test_words_of_a_lexicon_are_embedded(characters: str) -> None:
    vocab = ["<S>", "</S>", "<UNK>", "The", "bank"]
    lexicon_tokenizer = ElmoTokenizer(word_vocab=vocab, characters=characters)
    torch.manual_seed(0)
    model = ElmoModel(
        ElmoConfig(
            char_embedding_size=4 if characters == "bytes" else 0,
            char_filters=[[2, 8]],
            word_vocab_size=len(vocab) + 1,
            word_embedding_size=6,
            sentence_start_word_id=1,
            sentence_end_word_id=2,
            projection_size=8,
            cell_size=16,
        )
    ).eval()
    results = embed_layers(SENTENCES, model, lexicon_tokenizer)
    for words, result in zip(SENTENCES, results, strict=True):
        if words:
            batch = lexicon_tokenizer([words], is_split_into_words=True, return_tensors="pt")
            with torch.no_grad():
                hidden_states = model(**batch, output_hidden_states=True).hidden_states
            assert_close(result, torch.cat(hidden_states), **TOLERANCE)


def test_a_word_that_is_not_a_string_is_refused(tiny_model: ElmoModel) -> None:
    sentences: Any = [["The", "bank"], ["The", 1]]
    with pytest.raises(TypeError, match=r"got 1 \(int\) as word 1 of sentence 1"):
        list(embed(sentences, tiny_model, tokenizer))


@pytest.mark.slow
def test_a_sentence_of_100_000_words_is_that_of_one_window(tiny_model: ElmoModel) -> None:
    words = [f"word{number * number % 10_007}" for number in range(100_000)]
    (windowed,) = embed_layers([words], tiny_model, tokenizer)
    assert_close(windowed, run_model(tiny_model, words), **TOLERANCE)


def test_a_huge_sentence_comes_in_pieces_in_order(tiny_model: ElmoModel) -> None:
    sentences = [["one"], DOCUMENT, ["two"]]
    pieces = list(
        embed_pieces(sentences, tiny_model, tokenizer, max_batch_tokens=16, look_ahead=32)
    )
    assert [piece.sentence for piece in pieces] == [0] + [1] * (len(pieces) - 2) + [2]
    huge = pieces[1:-1]
    assert all(piece.vectors.shape[1] <= 16 and piece.num_words == 300 for piece in huge)
    ends = np.cumsum([piece.vectors.shape[1] for piece in huge])
    assert [piece.start for piece in huge] == [0, *ends[:-1]]
    assert ends[-1] == 300


def test_sentences_are_read_no_further_than_look_ahead(tiny_model: ElmoModel) -> None:
    read = 0

    def count() -> Iterator[list[str]]:
        nonlocal read
        while True:
            read += 1
            yield ["a", "b"]

    results = embed_layers(count(), tiny_model, tokenizer, max_batch_tokens=8, look_ahead=40)
    next(results)
    assert read == 11  # ten of four steps each, and the one that is too many


def test_vectors_do_not_hold_their_batch(tiny_model: ElmoModel) -> None:
    result, *others = embed_layers([["a"], DOCUMENT], tiny_model, tokenizer)
    assert result.untyped_storage().nbytes() == result.numel() * 4
    reference = weakref.ref(others.pop())
    gc.collect()
    assert reference() is None


def test_vectors_can_train_what_stands_on_them(tiny_model: ElmoModel) -> None:
    (layers,) = embed_layers([["a", "b"]], tiny_model, tokenizer)
    head = torch.nn.Linear(16, 2)
    head(layers).sum().backward()
    assert head.weight.grad is not None
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", lambda hidden: hidden),
        ("top", lambda hidden: hidden[2]),
        ("mean", lambda hidden: hidden.mean(0)),
        (0, lambda hidden: hidden[0]),
        (-2, lambda hidden: hidden[1]),
        ("mix", lambda hidden: 2 * (hidden[0] * 0.25 + hidden[1] * 0.5 + hidden[2] * 0.25)),
    ],
)
def test_embed_selects_layers(tiny_model: ElmoModel, layers: Any, expected: Any) -> None:
    tiny_model.config.mix_weights = [0.0, float(np.log(2)), 0.0]
    tiny_model.config.mix_gamma = 2.0
    results = embed(SENTENCES, tiny_model, tokenizer, layers=layers)
    for words, result in zip(SENTENCES, results, strict=True):
        assert isinstance(result, np.ndarray)
        assert_close(torch.from_numpy(result), expected(run_model(tiny_model, words)), **TOLERANCE)


@pytest.mark.parametrize("layer_norm", ["sentence", "batch"])
def test_a_normalised_mix_is_that_of_the_sentence_alone(
    tiny_model: ElmoModel, layer_norm: str
) -> None:
    tiny_model.config.mix_layer_norm = layer_norm
    results = embed([DOCUMENT, *SENTENCES], tiny_model, tokenizer, max_batch_tokens=32)
    for words, result in zip([DOCUMENT, *SENTENCES], results, strict=True):
        if words:
            with torch.no_grad():
                ids = tokenizer([words], is_split_into_words=True, return_tensors="pt")
                expected = tiny_model(**ids).elmo[0]
            assert_close(torch.from_numpy(result), expected, **TOLERANCE)


@pytest.mark.parametrize("layers", ["mix", "mean"])
def test_layers_are_rounded_to_half_precision_after_they_are_joined(
    tiny_model: ElmoModel, layers: Any
) -> None:
    (half,) = embed(SENTENCES[:1], tiny_model, tokenizer, layers=layers, dtype="float16")
    (whole,) = embed(SENTENCES[:1], tiny_model, tokenizer, layers=layers)
    np.testing.assert_array_equal(half, whole.astype("float16"))


def test_means_of_half_precision_do_not_overflow(tiny_model: ElmoModel) -> None:
    with torch.no_grad():
        tiny_model.token_encoder.projection.bias.fill_(30.0)
    options: Any = {"layers": 0, "pooling": "mean"}
    (half,) = embed([["the"] * 4000], tiny_model, tokenizer, dtype="float16", **options)
    (whole,) = embed([["the"] * 4000], tiny_model, tokenizer, **options)
    np.testing.assert_allclose(half, whole, rtol=1e-3)


def test_layers_are_normalised_before_they_are_rounded_to_half_precision(
    tiny_model: ElmoModel,
) -> None:
    tiny_model.config.mix_layer_norm = "sentence"
    with torch.no_grad():
        tiny_model.token_encoder.projection.bias.fill_(1e5)  # infinite in half precision
    (half,) = embed(SENTENCES[:1], tiny_model, tokenizer, dtype="float16")
    (whole,) = embed(SENTENCES[:1], tiny_model, tokenizer)
    np.testing.assert_allclose(half, whole, rtol=1e-3, atol=1e-3)


def test_means_of_float64_are_computed_in_float64(tiny_model: ElmoModel) -> None:
    options: Any = {"dtype": "float64", "backend": "torch"}
    model, words = tiny_model.double(), ["the", "bank", "raised"]
    (mean,) = embed([words], model, tokenizer, pooling="mean", **options)
    (whole,) = embed([words], model, tokenizer, **options)
    np.testing.assert_allclose(mean, whole.mean(axis=-2), rtol=0, atol=1e-15)


@pytest.mark.parametrize("max_batch_tokens", [1, 2048])
def test_sentences_may_be_arrays(tiny_model: ElmoModel, max_batch_tokens: int) -> None:
    sentences = [["a", "b"], [], ["c"]]
    options: Any = {"max_batch_tokens": max_batch_tokens}
    arrays = embed([np.array(words, str) for words in sentences], tiny_model, tokenizer, **options)
    for got, expected in zip(
        arrays, embed(sentences, tiny_model, tokenizer, **options), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("layers", ["all", "top"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("max_batch_tokens", [16, 2048])
def test_embed_pools_over_words_alone(
    tiny_model: ElmoModel, layers: Any, pooling: Any, max_batch_tokens: int
) -> None:
    options = {
        "layers": layers,
        "max_batch_tokens": max_batch_tokens,
        "look_ahead": 2 * max_batch_tokens,
    }
    sentences = [*SENTENCES, DOCUMENT]
    pooled = embed(sentences, tiny_model, tokenizer, pooling=pooling, **options)
    whole = embed(sentences, tiny_model, tokenizer, **options)
    for words, result, vectors in zip(sentences, pooled, whole, strict=True):
        reduce = np.mean if pooling == "mean" else np.max
        expected = reduce(vectors, axis=-2) if words else np.zeros(result.shape, "float32")
        np.testing.assert_allclose(result, expected, atol=1e-5)
        assert result.shape == ((3, 16) if layers == "all" else (16,))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_embed_gives_arrays_of_the_dtype(tiny_model: ElmoModel, dtype: str) -> None:
    (result,) = embed([["a"]], tiny_model, tokenizer, dtype=dtype)
    assert result.dtype == dtype


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 3}, r"Expected a layer from 0 \(word vectors\) to 2, got 3"),
        ({"layers": "last"}, "Expected layers mix, all, top, mean or a number, got 'last'"),
        ({"pooling": "sum"}, "Expected pooling none, mean or max, got 'sum'"),
        ({"max_batch_tokens": 0}, "Expected max_batch_tokens and look_ahead above 0, got 0 and 0"),
        ({"look_ahead": 0}, "Expected max_batch_tokens and look_ahead above 0, got 2048 and 0"),
        ({"dtype": "int8"}, "Expected dtype float16, float32 or float64, got int8"),
        ({"dtype": "complex64"}, "Expected dtype float16, float32 or float64, got complex64"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_sentence(
    tiny_model: ElmoModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        embed([["a"]], tiny_model, tokenizer, **options)


def test_a_model_in_training_is_refused(tiny_model: ElmoModel) -> None:
    with pytest.raises(ValueError, match=r"Call model.eval\(\) first"):
        embed_layers([["a"]], tiny_model.train(), tokenizer)


def test_a_model_that_training_has_taken_over_is_refused(tiny_model: ElmoModel) -> None:
    sentences = [["a"] * 30] * 3
    vectors = embed(sentences, tiny_model, tokenizer, look_ahead=1, backend="torch")
    next(vectors)
    tiny_model.train()
    with pytest.raises(ValueError, match=r"Call model.eval\(\) first"):
        next(vectors)


def test_strings_are_refused_as_sentences(tiny_model: ElmoModel) -> None:
    with pytest.raises(TypeError, match="Expected a list of words as sentence 0; got 'The bank'"):
        list(embed(["The bank"], tiny_model, tokenizer))


@pytest.mark.parametrize(("mix_layers", "layer"), [("top", -1), ("words", 0)])
def test_the_mix_leaves_out_what_the_configuration_does(
    tiny_model: ElmoModel, mix_layers: str, layer: int
) -> None:
    tiny_model.config.mix_layers = mix_layers
    words = ["The", "bank"]
    (mixed,) = embed([words], tiny_model, ElmoTokenizer(), layers="mix")
    (expected,) = embed([words], tiny_model, ElmoTokenizer(), layers=layer)
    np.testing.assert_allclose(mixed, expected, atol=1e-6)


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_vectors_that_overflow_are_refused(tiny_model: ElmoModel, backend: Backend) -> None:
    tokenizer = ElmoTokenizer.from_config(tiny_model.config)
    with torch.no_grad():
        tiny_model.token_encoder.projection.weight.fill_(3e38)
    with pytest.raises(ValueError, match="Expected finite vectors, got NaN or infinity"):
        list(embed([["A", "bank"]], tiny_model, tokenizer, backend=backend))


def test_the_tokenizer_of_another_bilm_is_refused(tiny_model: ElmoModel) -> None:
    other = ElmoTokenizer(word_start_char_id=257)
    with pytest.raises(ValueError, match=r"Expected a tokenizer with word_start_char_id=259, as t"):
        next(embed([["a"]], tiny_model, other))
