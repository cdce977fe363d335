"""The model: layers against plain PyTorch, invariants, errors, loading."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForPreTraining,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoPreTrainedModel,
    ElmoScalarMix,
    ElmoState,
)

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


def run_by_hand(model: ElmoModel, words: list[str]) -> torch.Tensor:
    """One sentence through plain loops in float64, shape (layers, tokens + 2, width)."""
    config = model.config
    p = {name: value.double() for name, value in model.state_dict().items()}
    ids = make_ids(config, ["", *words, ""])
    ids[[0, -1], 1] = torch.tensor([257, 258])
    ids[[0, -1], 2] = 260
    x = p["token_encoder.char_embedding.weight"][ids]  # (tokens, characters, width)
    parts = []
    for i, (width, _) in enumerate(config.char_filters):
        weight = p[f"token_encoder.char_convolutions.{i}.weight"]
        windows = x.unfold(1, width, 1)  # (tokens, positions, char_embedding_size, width)
        values = torch.einsum("tpdw,ndw->tpn", windows, weight)
        parts.append(values.amax(1) + p[f"token_encoder.char_convolutions.{i}.bias"])
    x = torch.cat(parts, -1).relu()
    for k in range(config.num_highway_layers):
        name = f"token_encoder.highways.{k}"
        gate = torch.sigmoid(x @ p[f"{name}.gate.weight"].T + p[f"{name}.gate.bias"])
        transform = (x @ p[f"{name}.transform.weight"].T + p[f"{name}.transform.bias"]).relu()
        x = gate * transform + (1 - gate) * x
    x = x @ p["token_encoder.projection.weight"].T + p["token_encoder.projection.bias"]
    layers = [torch.cat([x, x], -1)]
    sides = {"forward_lstm": x, "backward_lstm": x.flip(0)}
    for layer in range(config.num_hidden_layers):
        for side, inputs in sides.items():
            w = {k: p[f"{side}.layers.{layer}.{k}"] for k in ("input_weight", "state_weight")}
            bias = p[f"{side}.layers.{layer}.bias"]
            projection = p[f"{side}.layers.{layer}.projection_weight"]
            h, c = torch.zeros(config.projection_size), torch.zeros(config.cell_size)
            outputs = []
            for step in inputs:
                z = w["input_weight"] @ step + w["state_weight"] @ h.double() + bias
                i, f, o, j = z.chunk(4)
                c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
                c = c.clamp(-config.cell_clip, config.cell_clip)
                h = projection @ (torch.sigmoid(o) * torch.tanh(c))
                h = h.clamp(-config.projection_clip, config.projection_clip)
                outputs.append(h + step if layer else h)
            sides[side] = torch.stack(outputs)
        layers.append(torch.cat([sides["forward_lstm"], sides["backward_lstm"].flip(0)], -1))
    return torch.stack(layers)


def test_layers_equal_plain_loops_in_float64(tiny_model: ElmoModel) -> None:
    words = SENTENCES[0]
    ids, mask = make_batch(tiny_model.config, [words])
    with torch.no_grad():
        out = tiny_model(ids, mask, output_hidden_states=True, keep_sentence_boundaries=True)
    expected = run_by_hand(tiny_model, words)
    assert_close(torch.stack(out.hidden_states)[:, 0].double(), expected, **TOLERANCE)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_a_sentence_alone_equals_itself_in_any_batch(
    tiny_model: ElmoModel, side: str, order: list[int]
) -> None:
    ids, mask = make_batch(tiny_model.config, [SENTENCES[k] for k in order], side)
    with torch.no_grad():
        batch = tiny_model(ids, mask, output_hidden_states=True)
        for row, k in enumerate(order):
            alone = tiny_model(*make_batch(tiny_model.config, [SENTENCES[k]]))
            assert_close(batch.elmo[row][mask[row].bool()], alone.elmo[0], **TOLERANCE)
            assert batch.elmo[row][~mask[row].bool()].abs().sum() == 0


def test_mask_may_be_left_out(tiny_model: ElmoModel) -> None:
    ids, mask = make_batch(tiny_model.config, SENTENCES)
    out = tiny_model(ids)
    assert_close(out.attention_mask, mask)
    assert_close(out.elmo, tiny_model(ids, mask).elmo, rtol=0, atol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_boundary_rows_frame_each_sentence(tiny_model: ElmoModel, side: str) -> None:
    ids, mask = make_batch(tiny_model.config, SENTENCES, side)
    with torch.no_grad():
        plain = tiny_model(ids, mask).last_hidden_state
        out = tiny_model(ids, mask, keep_sentence_boundaries=True)
    assert out.attention_mask.sum(1).tolist() == [len(words) + 2 for words in SENTENCES]
    for row, words in enumerate(SENTENCES):
        framed = out.last_hidden_state[row][out.attention_mask[row].bool()]
        assert framed.abs().sum(1).all()
        assert_close(framed[1:-1], plain[row][mask[row].bool()], rtol=0, atol=0)
        assert len(framed) == len(words) + 2


def test_calls_leave_no_trace(tiny_model: ElmoModel) -> None:
    batch = make_batch(tiny_model.config, SENTENCES)
    first = tiny_model(*batch).elmo
    tiny_model(*make_batch(tiny_model.config, SENTENCES[:1]))
    assert_close(tiny_model(*batch).elmo, first, rtol=0, atol=0)


def test_state_continues_a_stream(tiny_model: ElmoModel) -> None:
    ids, mask = make_batch(tiny_model.config, SENTENCES)
    with torch.no_grad():
        first = tiny_model(ids, mask)
        second = tiny_model(ids, mask, state=first.state)
        reversed_state = ElmoState(*((h.flip(1), c.flip(1)) for h, c in first.state))
        flipped = tiny_model(ids.flip(0), mask.flip(0), state=reversed_state)
    assert (second.elmo - first.elmo).abs().max() > 1e-3
    assert_close(flipped.elmo.flip(0), second.elmo, **TOLERANCE)


def test_state_of_another_batch_is_refused(tiny_model: ElmoModel) -> None:
    ids, mask = make_batch(tiny_model.config, SENTENCES)
    state = tiny_model(ids, mask).state
    with pytest.raises(ValueError, match="Expected a state of 2 sentences, got 5"):
        tiny_model(ids[:2], mask[:2], state=state)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0)])
def test_nothing_in_nothing_out(tiny_model: ElmoModel, shape: tuple[int, int]) -> None:
    out = tiny_model(torch.zeros(*shape, 50, dtype=torch.long))
    assert out.elmo.shape == (*shape, tiny_model.config.hidden_size)


def test_unidirectional_models_have_half_the_width(tiny_config: ElmoConfig) -> None:
    config = ElmoConfig(**{**tiny_config.to_dict(), "bidirectional": False, "hidden_size": None})
    out = ElmoModel(config)(*make_batch(config, SENTENCES))
    assert out.elmo.shape == (5, 6, config.projection_size)
    assert out.state.backward is None


def test_word_input_models_read_a_lexicon(tiny_config: ElmoConfig) -> None:
    config = ElmoConfig(
        **{
            **tiny_config.to_dict(),
            "char_embedding_size": 0,
            "use_token_projection": False,
            "word_vocab_size": 10,
            "word_embedding_size": 8,
            "sentence_start_word_id": 1,
            "sentence_end_word_id": 2,
        }
    )
    out = ElmoModel(config)(word_input_ids=torch.tensor([[3, 4, 5], [6, 0, 0]]))
    assert out.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    with pytest.raises(ValueError, match="takes no input_ids"):
        ElmoModel(config)(torch.ones(1, 1, 50, dtype=torch.long))


def test_ids_of_another_width_are_refused(tiny_model: ElmoModel) -> None:
    with pytest.raises(ValueError, match=r"shape \(batch, tokens, 50\), got \(1, 2, 20\)"):
        tiny_model(torch.ones(1, 2, 20, dtype=torch.long))


def test_mask_of_another_shape_is_refused(tiny_model: ElmoModel) -> None:
    ids, mask = make_batch(tiny_model.config, SENTENCES)
    with pytest.raises(ValueError, match=r"attention_mask of shape \(5, 6\), got \(5, 5\)"):
        tiny_model(ids, mask[:, 1:])


@pytest.mark.parametrize(
    ("cell_size", "projection_size", "filters", "highways", "expected"),
    [  # Peters et al. 2018 and the released models, softmax not counted
        (4096, 512, None, 2, 93.6),
        (2048, 256, None, 1, 28.0),
        (1024, 128, [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]], 1, 13.6),
    ],
)
def test_published_sizes(
    cell_size: int,
    projection_size: int,
    filters: list[list[int]] | None,
    highways: int,
    expected: float,
) -> None:
    with torch.device("meta"):
        model = ElmoModel(
            ElmoConfig(
                cell_size=cell_size,
                projection_size=projection_size,
                char_filters=filters,
                num_highway_layers=highways,
            )
        )
    assert round(model.num_parameters() / 1e6, 1) == expected


def test_saving_and_loading_is_the_identity(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path)
    loaded = ElmoModel.from_pretrained(tmp_path)
    for name, value in tiny_model.state_dict().items():
        assert_close(loaded.state_dict()[name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("missing", "misses tensors: forward_lstm.layers.1.bias"),
        ("surplus", "has surplus tensors: forward_lstm.layers.2.bias"),
    ],
)
def test_loading_the_bilm_is_strict(
    tiny_model: ElmoModel, tmp_path: Path, problem: str, message: str
) -> None:
    tiny_model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    bias = tensors["forward_lstm.layers.1.bias"]
    if problem == "missing":
        del tensors["forward_lstm.layers.1.bias"]
    else:
        tensors["forward_lstm.layers.2.bias"] = bias.clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=message):
        ElmoModel.from_pretrained(tmp_path)
    _, report = ElmoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert len(report["missing_keys"]) + len(report["unexpected_keys"]) == 1


def test_a_misshapen_tensor_is_named(tiny_model: ElmoModel, tmp_path: Path) -> None:
    tiny_model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["forward_lstm.layers.0.bias"] = tensors["forward_lstm.layers.0.bias"][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for options in ({}, {"ignore_mismatched_sizes": True}, {"output_loading_info": True}):
        with pytest.raises(
            RuntimeError, match=r"forward_lstm\.layers\.0\.bias \(63,\) for \(64,\)"
        ):
            ElmoModel.from_pretrained(tmp_path, **options)


def test_mix_is_a_softmax_weighted_sum() -> None:
    layers = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(1))
    mix = ElmoScalarMix(3, weights=[0.0, 1.0, -1.0], gamma=2.0)
    weights = torch.tensor([0.0, 1.0, -1.0]).exp()
    expected = 2.0 * sum(w * x for w, x in zip(weights / weights.sum(), layers, strict=True))
    assert_close(mix(layers), expected)
    assert_close(mix(list(layers)), expected)
    assert mix.penalty().item() == 2.0


def test_mix_refuses_another_number_of_layers() -> None:
    with pytest.raises(ValueError, match="Expected 3 layers to mix, got 2"):
        ElmoScalarMix(3)(torch.zeros(2, 1, 1, 4))
    with pytest.raises(ValueError, match="Expected 3 weights, got 2"):
        ElmoScalarMix(3, weights=[0.0, 0.0])


def test_sentence_layer_norm_does_not_see_padding_or_neighbours() -> None:
    layers = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    mix = ElmoScalarMix(3, layer_norm="sentence")
    mixed = mix(layers, mask)
    alone = mix(layers[:, 1:, :2])
    assert_close(mixed[1, :2], alone[0])
    assert mixed[1, 2:].abs().sum() == 0
    assert abs(alone.mean().item()) < 1e-6


def test_batch_layer_norm_uses_all_words() -> None:
    layers = torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    words = layers[0][mask.bool()]
    expected = (words - words.mean()) / words.var(correction=0).sqrt()
    assert_close(ElmoScalarMix(1, layer_norm="batch")(layers, mask)[mask.bool()], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close(tiny_model: ElmoModel, dtype: torch.dtype) -> None:
    batch = make_batch(tiny_model.config, SENTENCES)
    with torch.no_grad():
        expected = tiny_model(*batch).elmo
        out = tiny_model.to(dtype)(*batch).elmo
    assert out.dtype == dtype
    assert_close(out.float(), expected, rtol=0, atol=0.06)  # 2**-8 of 4, a few times over


def test_quantizing_changes_inference_until_it_is_undone(tiny_model: ElmoModel) -> None:
    batch = make_batch(tiny_model.config, SENTENCES)
    with torch.no_grad():
        expected = tiny_model(*batch).elmo
        quantized = tiny_model.quantize("int8")(*batch).elmo
        copied = copy.deepcopy(tiny_model)(*batch).elmo
        undone = tiny_model.quantize(None)(*batch).elmo
    assert not torch.equal(quantized, expected)
    assert_close(quantized, expected, rtol=0, atol=0.1)
    assert_close((copied, undone), (quantized, expected), rtol=0, atol=0)


def test_a_quantized_model_is_saved_as_it_was(tiny_model: ElmoModel, tmp_path: Path) -> None:
    expected = copy.deepcopy(tiny_model.state_dict())
    tiny_model.quantize("int8").save_pretrained(tmp_path)
    loaded = ElmoModel.from_pretrained(tmp_path)
    assert loaded.quantization is None
    assert_close(loaded.state_dict(), expected, rtol=0, atol=0)


def test_quantizing_refuses_what_it_cannot_do(tiny_model: ElmoModel) -> None:
    with pytest.raises(ValueError, match="Expected quantization \"int8\" or None, got 'int4'"):
        tiny_model.quantize("int4")
    with pytest.raises(ValueError, match=r"Expected int8 products .* on meta, found none"):
        tiny_model.to("meta").quantize("int8")
    assert tiny_model.quantization is None


def test_gradient_checkpointing_changes_no_gradient(tiny_config: ElmoConfig) -> None:
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = ElmoModel(ElmoConfig(**{**tiny_config.to_dict(), "dropout": 0.0})).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(*make_batch(model.config, SENTENCES)).last_hidden_state.square().sum().backward()
        gradients.append({name: value.grad for name, value in model.named_parameters()})
    for name, value in gradients[0].items():
        assert value is not None, name
        assert_close(gradients[1][name], value)


@pytest.fixture
def language_model(tiny_config: ElmoConfig) -> ElmoForPreTraining:
    """A tiny biLM with a softmax over seven words."""
    torch.manual_seed(0)
    config = ElmoConfig(**{**tiny_config.to_dict(), "vocab_size": 7})
    return ElmoForPreTraining(config).eval()


LABELS = [[3, 4, 2, 5, 6, 2], [], [2, 3, 4], [5, 6, 2, 2, 3], [4]]  # of SENTENCES


def make_labels(side: str) -> torch.Tensor:
    """Labels of the sentences, with a word of the vocabulary at the padding: it must not count."""
    labels = torch.full((len(LABELS), 6), 3)
    for row, ids in enumerate(LABELS):
        start = 0 if side == "right" else 6 - len(ids)
        labels[row, start : start + len(ids)] = torch.tensor(ids)
    return labels


@pytest.mark.parametrize("side", ["left", "right"])
def test_language_model_predicts_next_and_previous_words(
    language_model: ElmoForPreTraining, side: str
) -> None:
    config = language_model.config
    ids, mask = make_batch(config, SENTENCES, side)
    with torch.no_grad():
        out = language_model(ids, mask, labels=make_labels(side))
        top = language_model.elmo(ids, mask, keep_sentence_boundaries=True)
        losses: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for row, words in enumerate(LABELS):
            framed = top.last_hidden_state[row][top.attention_mask[row].bool()]
            forward, backward = framed.split(config.projection_size, dim=-1)
            target = [0, *words, 1]
            for k in range(len(target) - 1):
                scores = language_model.softmax(forward[k]).log_softmax(-1)
                losses[0].append(-scores[target[k + 1]])
                scores = language_model.softmax(backward[k + 1]).log_softmax(-1)
                losses[1].append(-scores[target[k]])
    assert out.forward_logits.shape == out.backward_logits.shape == (5, 7, 7)
    expected = sum(torch.stack(direction).mean() for direction in losses) / 2
    assert_close(out.loss, expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_language_model_gives_hidden_states_without_boundaries(
    language_model: ElmoForPreTraining, side: str
) -> None:
    batch = make_batch(language_model.config, SENTENCES, side)
    out = language_model(*batch, output_hidden_states=True)
    expected = language_model.elmo(*batch, output_hidden_states=True).hidden_states
    assert_close(out.hidden_states, expected, rtol=0, atol=0)
    assert language_model(*batch).hidden_states is None


def test_unidirectional_language_models_have_one_side(tiny_config: ElmoConfig) -> None:
    changes = {"bidirectional": False, "hidden_size": None, "vocab_size": 7}
    config = ElmoConfig(**{**tiny_config.to_dict(), **changes})
    out = ElmoForPreTraining(config)(*make_batch(config, SENTENCES), labels=make_labels("right"))
    assert out.backward_logits is None
    assert out.loss > 0


def test_language_model_ignores_labels_of_minus_100(language_model: ElmoForPreTraining) -> None:
    ids, mask = make_batch(language_model.config, [SENTENCES[0]])
    labels = torch.full((1, 6), -100)
    out = language_model(ids, mask, labels=labels)
    forward = -out.forward_logits[0, 6].log_softmax(-1)[1]  # only </S> and <S> are left
    backward = -out.backward_logits[0, 0].log_softmax(-1)[0]
    assert_close(out.loss, (forward + backward) / 2)


def test_language_model_refuses_labels_of_another_shape(
    language_model: ElmoForPreTraining,
) -> None:
    batch = make_batch(language_model.config, SENTENCES)
    with pytest.raises(ValueError, match=r"labels of shape \(5, 6\), got \(5, 5\)"):
        language_model(*batch, labels=make_labels("right")[:, 1:])


def test_language_model_needs_a_target_vocabulary(tiny_config: ElmoConfig) -> None:
    with pytest.raises(ValueError, match="Expected a vocab_size above 0"):
        ElmoForPreTraining(tiny_config)


def test_language_model_starts_near_a_uniform_guess(tiny_config: ElmoConfig) -> None:
    torch.manual_seed(0)
    config = ElmoConfig(**{**tiny_config.to_dict(), "vocab_size": 5000})
    softmax = ElmoForPreTraining(config).softmax
    assert_close(softmax.weight.std().item(), config.projection_size**-0.5, rtol=0.02, atol=0)
    assert softmax.bias.abs().sum() == 0


def test_language_model_loads_from_a_bilm_and_back(
    tiny_model: ElmoModel, language_model: ElmoForPreTraining, tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path / "bilm")
    loaded = ElmoForPreTraining.from_pretrained(tmp_path / "bilm", vocab_size=7)
    assert_close(loaded.elmo.state_dict(), tiny_model.state_dict(), rtol=0, atol=0)
    language_model.save_pretrained(tmp_path / "lm")
    bilm = ElmoModel.from_pretrained(tmp_path / "lm")
    assert_close(bilm.state_dict(), language_model.elmo.state_dict(), rtol=0, atol=0)


def test_initial_values_are_those_of_bilm_tf(tiny_config: ElmoConfig) -> None:
    torch.manual_seed(0)
    encoder = ElmoModel(tiny_config).token_encoder
    characters = encoder.char_embedding.weight
    assert characters.abs().max() <= 1
    assert characters.std() > 0.5  # uniform from -1 to 1, deviation 0.577
    assert characters[0].abs().sum() == 0
    highway = encoder.highways[0]
    assert highway.gate.bias.tolist() == [-2.0] * tiny_config.num_filters
    assert_close(highway.gate.weight.std().item(), tiny_config.num_filters**-0.5, rtol=0.2, atol=0)


def test_loading_draws_initial_values_for_missing_heads_alone(
    tiny_model: ElmoModel, tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path)
    model = ElmoForPreTraining.from_pretrained(tmp_path, vocab_size=5000)
    assert_close(model.elmo.state_dict(), tiny_model.state_dict(), rtol=0, atol=0)
    assert_close(model.softmax.weight.std().item(), 8**-0.5, rtol=0.02, atol=0)


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


def test_state_is_no_key_of_an_output(tiny_model: ElmoModel) -> None:
    with torch.no_grad():
        out = tiny_model(*make_batch(tiny_model.config, SENTENCES))
    assert out.state.forward[0].shape == (2, 5, 8)
    assert list(out) == ["last_hidden_state", "elmo", "attention_mask"]
    assert all(isinstance(value, torch.Tensor) for value in out.to_tuple())
    copied = copy.deepcopy(out)  # as pickling does, by what the class says of itself
    assert_close(copied.state, out.state)
    assert list(copied) == list(out)


def test_token_classifier_reads_its_own_mix(tiny_config: ElmoConfig) -> None:
    model = make_classifier(ElmoForTokenClassification, tiny_config)
    batch = make_batch(tiny_config, SENTENCES)
    with torch.no_grad():
        out = model(*batch)
        layers = torch.stack(model.elmo(*batch, output_hidden_states=True).hidden_states)
    mix = model.scalar_mixes[0]
    weights = mix.weights.softmax(0)
    mixed = mix.gamma * (weights[:, None, None, None] * layers).sum(0)
    assert_close(out.logits, mixed @ model.classifier.weight.T + model.classifier.bias)
    assert out.hidden_states is None


def test_token_classifier_ignores_labels_of_minus_100(tiny_config: ElmoConfig) -> None:
    model = make_classifier(ElmoForTokenClassification, tiny_config)
    ids, mask = make_batch(tiny_config, SENTENCES)
    labels = torch.arange(30).view(5, 6).remainder(3).masked_fill(mask == 0, -100)
    out = model(ids, mask, labels=labels)
    scores = out.logits.log_softmax(-1)[mask.bool()]
    expected = -scores.gather(1, labels[mask.bool()][:, None]).mean()
    assert_close(out.loss, expected)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_sentences_are_pooled_over_their_words(
    tiny_config: ElmoConfig, pooling: str, side: str
) -> None:
    model = make_classifier(ElmoForSequenceClassification, tiny_config, classifier_pooling=pooling)
    ids, mask = make_batch(tiny_config, SENTENCES, side)
    with torch.no_grad():
        logits = model(ids, mask).logits
        mixed, _ = model._mix(ids, mask)
    for row, words in enumerate(SENTENCES):
        x = mixed[row][mask[row].bool()]
        pooled = torch.zeros(16)
        if words:
            pooled = x.mean(0) if pooling == "mean" else x.amax(0)
        assert_close(logits[row], model.classifier(pooled))


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (2, 0)])
def test_classifiers_take_nothing(
    tiny_config: ElmoConfig, pooling: str, shape: tuple[int, int]
) -> None:
    ids = torch.zeros(*shape, 50, dtype=torch.long)
    changes = {"classifier_pooling": pooling}
    model = make_classifier(ElmoForSequenceClassification, tiny_config, **changes)
    assert model(ids).logits.shape == (shape[0], 3)
    assert model(ids).logits.isfinite().all()
    model = make_classifier(ElmoForTokenClassification, tiny_config, **changes)
    assert model(ids).logits.shape == (*shape, 3)


@pytest.mark.parametrize(
    ("num_labels", "labels", "problem"),
    [
        (3, torch.tensor([0, 2, 1, 0, 2]), "single_label_classification"),
        (3, torch.tensor([[1.0, 0, 1]] * 5), "multi_label_classification"),
        (1, torch.tensor([0.5, -1, 2, 0, 1]), "regression"),
        (1, torch.tensor([[0.5], [-1], [2], [0], [1]]), "regression"),
    ],
)
def test_problem_type_is_that_of_the_labels(
    tiny_config: ElmoConfig, num_labels: int, labels: torch.Tensor, problem: str
) -> None:
    model = make_classifier(ElmoForSequenceClassification, tiny_config, num_labels=num_labels)
    out = model(*make_batch(tiny_config, SENTENCES), labels=labels)
    assert model.config.problem_type == problem
    expected = {
        "single_label_classification": F.cross_entropy,
        "multi_label_classification": F.binary_cross_entropy_with_logits,
        "regression": lambda x, y: (x.flatten() - y.flatten()).square().mean(),
    }[problem](out.logits, labels)
    assert_close(out.loss, expected)


@pytest.mark.parametrize("head", CLASSIFIERS)
def test_several_mixes_stand_side_by_side(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel]
) -> None:
    model = make_classifier(head, tiny_config, num_scalar_mixes=2)
    batch = make_batch(tiny_config, SENTENCES)
    mixed, outputs = model._mix(*batch)
    for mix, part in zip(model.scalar_mixes, mixed.chunk(2, -1), strict=True):
        assert_close(part, mix(outputs.hidden_states))
    assert (mixed[..., :16] - mixed[..., 16:]).abs().max() > 0.1
    assert model(*batch).logits.shape[-1] == 3


@pytest.mark.parametrize("head", CLASSIFIERS)
@pytest.mark.parametrize("origin", ["config", "folder"])
def test_bilm_is_frozen_by_default(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel], origin: str, tmp_path: Path
) -> None:
    model = make_classifier(head, tiny_config)
    if origin == "folder":
        model.save_pretrained(tmp_path)
        model = head.from_pretrained(tmp_path)
    ids, mask = make_batch(tiny_config, SENTENCES)
    model.train()
    assert not model.elmo.training
    assert model.dropout.training
    model(ids, mask).logits.sum().backward()
    trained = {name for name, value in model.named_parameters() if value.grad is not None}
    assert trained == {
        "classifier.weight",
        "classifier.bias",
        "scalar_mixes.0.weights",
        "scalar_mixes.0.gamma",
    }
    assert {name for name, value in model.named_parameters() if value.requires_grad} == trained


@pytest.mark.parametrize("head", CLASSIFIERS)
@pytest.mark.parametrize("origin", ["config", "folder", "by hand"])
def test_bilm_is_trained_on_request(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel], origin: str, tmp_path: Path
) -> None:
    model = make_classifier(head, tiny_config, freeze_bilm=origin == "by hand")
    if origin == "folder":
        model.save_pretrained(tmp_path)
        model = head.from_pretrained(tmp_path)
    if origin == "by hand":
        model.elmo.requires_grad_(True)
    ids, mask = make_batch(tiny_config, SENTENCES)
    model.train()
    assert model.elmo.training
    model(ids, mask).logits.sum().backward()
    assert all(value.grad is not None for value in model.parameters())


def test_language_model_is_never_frozen(language_model: ElmoForPreTraining, tmp_path: Path) -> None:
    assert language_model.config.freeze_bilm
    language_model.save_pretrained(tmp_path)
    for model in (language_model, ElmoForPreTraining.from_pretrained(tmp_path)):
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert model.train().elmo.training


@pytest.mark.parametrize("head", CLASSIFIERS)
def test_classifiers_return_layers_on_request(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel]
) -> None:
    model = make_classifier(head, tiny_config)
    batch = make_batch(tiny_config, SENTENCES)
    out = model(*batch, output_hidden_states=True)
    assert [layer.shape for layer in out.hidden_states] == [(5, 6, 16)] * 3
    model.config.output_hidden_states = True
    assert model(*batch).hidden_states is not None
    assert model(*batch, output_hidden_states=False).hidden_states is None


@pytest.mark.parametrize("head", CLASSIFIERS)
def test_classifiers_start_from_the_configured_mix(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel]
) -> None:
    changes = {"mix_weights": [1.0, 0.0, -1.0], "mix_gamma": 2.0}
    model = head(ElmoConfig(**{**tiny_config.to_dict(), **changes}))
    assert model.scalar_mixes[0].weights.tolist() == [1.0, 0.0, -1.0]
    assert model.scalar_mixes[0].gamma.tolist() == [2.0]


def test_heads_load_from_each_other_with_their_bilm(
    tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    tagger = make_classifier(ElmoForTokenClassification, tiny_config)
    tagger.save_pretrained(tmp_path)
    model, report = ElmoForSequenceClassification.from_pretrained(
        tmp_path, num_labels=3, output_loading_info=True
    )
    assert_close(model.state_dict(), tagger.state_dict(), rtol=0, atol=0)
    assert not report["missing_keys"]


def test_a_misshapen_head_is_an_error_unless_allowed(
    tiny_config: ElmoConfig, tmp_path: Path
) -> None:
    make_classifier(ElmoForTokenClassification, tiny_config).save_pretrained(tmp_path)
    with pytest.raises(
        RuntimeError, match=r"misshapen tensors: classifier\.bias \(3,\) for \(7,\)"
    ):
        ElmoForTokenClassification.from_pretrained(tmp_path, num_labels=7)
    model = ElmoForTokenClassification.from_pretrained(
        tmp_path, num_labels=7, ignore_mismatched_sizes=True
    )
    assert model.classifier.bias.shape == (7,)


@pytest.mark.parametrize(
    ("auto", "expected"),
    [
        (AutoModel, ElmoModel),
        (AutoModelForPreTraining, ElmoForPreTraining),
        (AutoModelForTokenClassification, ElmoForTokenClassification),
        (AutoModelForSequenceClassification, ElmoForSequenceClassification),
    ],
)
def test_auto_classes_know_the_models(
    tiny_config: ElmoConfig, tmp_path: Path, auto: type, expected: type[ElmoPreTrainedModel]
) -> None:
    config = ElmoConfig(**{**tiny_config.to_dict(), "vocab_size": 7})
    expected(config).save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is ElmoConfig
    assert type(auto.from_pretrained(tmp_path)) is expected
    assert type(auto.from_config(config)) is expected


def test_first_hidden_state_is_what_the_lstms_read(tiny_model: ElmoModel) -> None:
    ids, mask = make_batch(tiny_model.config, SENTENCES)
    out = tiny_model(ids, mask, output_hidden_states=True)
    out.hidden_states[0].retain_grad()
    out.last_hidden_state[0, 0].sum().backward()
    gradient = out.hidden_states[0].grad
    assert gradient[0].abs().sum(-1).all()  # both directions: from every word of the sentence
    assert gradient[1:].abs().sum() == 0


def test_gradient_checkpointing_changes_no_gradient_of_a_head(tiny_config: ElmoConfig) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = make_classifier(
            ElmoForTokenClassification, tiny_config, freeze_bilm=False, dropout=0.0
        )
        model.dropout.p = 0.0
        if checkpointing:
            model.activation_checkpointing_enable()
        model.train()(*make_batch(tiny_config, SENTENCES)).logits.sum().backward()
        gradients.append({name: value.grad for name, value in model.named_parameters()})
    assert_close(gradients[0], gradients[1])


def test_input_embeddings_are_the_table_of_characters(tiny_model: ElmoModel) -> None:
    table = torch.nn.Embedding(10, 4)
    tiny_model.set_input_embeddings(table)
    assert tiny_model.get_input_embeddings() is tiny_model.token_encoder.char_embedding is table


@pytest.mark.parametrize(
    ("head", "changes", "labels"),
    [
        (ElmoForTokenClassification, {}, torch.ones(5, 6, dtype=torch.long)),
        (ElmoForSequenceClassification, {}, torch.tensor([0, 2, 1, 0, 2])),
        (ElmoForSequenceClassification, {}, torch.tensor([[1.0, 0, 1]] * 5)),
        (ElmoForSequenceClassification, {"num_labels": 1}, torch.tensor([0.5, -1, 2, 0, 1])),
    ],
)
def test_losses_are_divided_by_the_number_of_labels_that_is_given(
    tiny_config: ElmoConfig,
    head: type[ElmoPreTrainedModel],
    changes: dict[str, int],
    labels: torch.Tensor,
) -> None:
    model = make_classifier(head, tiny_config, **changes)
    batch = make_batch(tiny_config, SENTENCES)
    mean = model(*batch, labels=labels).loss
    loss = model(*batch, labels=labels, num_items_in_batch=torch.tensor(4 * labels.numel())).loss
    assert_close(loss, mean / 4)


def test_the_row_of_no_token_is_zero_and_stays_so(tiny_config: ElmoConfig) -> None:
    model = ElmoModel(tiny_config)
    table = model.token_encoder.char_embedding.weight
    assert table[0].abs().sum() == 0
    model.token_encoder(torch.zeros(1, 50, dtype=torch.long), None).sum().backward()
    assert table.grad[0].abs().sum() == 0


HEADS = [ElmoModel, ElmoForPreTraining, *CLASSIFIERS]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("device_map", ["cpu", "auto", {"": "cpu"}])
def test_device_maps_change_no_output(
    tiny_config: ElmoConfig, tmp_path: Path, head: type[ElmoPreTrainedModel], device_map: object
) -> None:
    model = make_classifier(head, tiny_config, vocab_size=7)
    model.save_pretrained(tmp_path)
    batch = make_batch(tiny_config, SENTENCES)
    loaded = head.from_pretrained(tmp_path, device_map=device_map)
    device = loaded.device
    out = loaded(*(part.to(device) for part in batch))[0]
    assert_close(out.cpu(), model(*batch)[0], **TOLERANCE)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_load_in_half_precision(
    tiny_config: ElmoConfig, tmp_path: Path, head: type[ElmoPreTrainedModel], dtype: torch.dtype
) -> None:
    model = make_classifier(head, tiny_config, vocab_size=7)
    model.save_pretrained(tmp_path / "single")
    loaded = head.from_pretrained(tmp_path / "single", dtype=dtype)
    assert {value.dtype for value in loaded.state_dict().values()} == {dtype}
    batch = make_batch(tiny_config, SENTENCES)
    with torch.no_grad():
        out, expected = loaded(*batch)[0], model(*batch)[0]
    assert out.dtype == dtype
    assert_close(out.float(), expected, rtol=0.05, atol=0.2)  # 2**-8 of 8, a few times over
    loaded.save_pretrained(tmp_path / "half")
    assert head.from_pretrained(tmp_path / "half").dtype == dtype


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_models_can_be_copied_after_use(
    tiny_config: ElmoConfig,
    head: type[ElmoPreTrainedModel],
    duplicate: Callable[[ElmoPreTrainedModel], ElmoPreTrainedModel],
) -> None:
    model = make_classifier(head, tiny_config, vocab_size=7)
    batch = make_batch(tiny_config, SENTENCES)
    with torch.inference_mode():
        expected = model(*batch)[0]
    copied = duplicate(model)
    with torch.inference_mode():
        assert_close(copied(*batch)[0], expected, rtol=0, atol=0)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(1.5)
    with torch.inference_mode():
        assert_close(model(*batch)[0], expected, rtol=0, atol=0)
        assert (copied(*batch)[0] - expected).abs().max() > 1e-3


@pytest.mark.parametrize("head", HEADS)
def test_models_are_built_without_memory_on_the_meta_device(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel]
) -> None:
    with torch.device("meta"):
        model = head(ElmoConfig(**{**tiny_config.to_dict(), "vocab_size": 7}))
    assert {value.device.type for value in model.state_dict().values()} == {"meta"}


def test_language_model_drops_out_the_input_of_its_softmax(
    language_model: ElmoForPreTraining,
) -> None:
    seen: list[torch.Tensor] = []
    language_model.softmax.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = make_batch(language_model.config, SENTENCES)
    language_model(*batch)
    language_model.config.dropout = 0.5
    language_model.train().elmo.eval()  # only what comes after the biLM
    language_model(*batch)
    kept = seen[2] != 0
    assert_close(seen[2][kept], 2 * seen[0][kept])
    assert 0.4 < kept.sum() / (seen[0] != 0).sum() < 0.6


@pytest.mark.parametrize("head", CLASSIFIERS)
@pytest.mark.parametrize("freeze_bilm", [True, False])
def test_a_frozen_bilm_keeps_no_graph(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel], freeze_bilm: bool
) -> None:
    model = make_classifier(head, tiny_config, freeze_bilm=freeze_bilm)
    modes: list[bool] = []
    model.elmo.register_forward_pre_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    model(*make_batch(tiny_config, SENTENCES))
    assert modes == [not freeze_bilm]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers_run_twice_and_their_hooks_once(
    tiny_config: ElmoConfig, use_reentrant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ElmoModel(tiny_config).train()
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    layer = model.forward_lstm.layers[1]
    calls, hooks = [], []
    checkpoint_layer = layer._gradient_checkpointing_func

    def checkpoint_counted(run: Callable[..., object], *args: object) -> object:
        return checkpoint_layer(lambda *inner: calls.append(1) or run(*inner), *args)

    monkeypatch.setattr(layer, "_gradient_checkpointing_func", checkpoint_counted)
    layer.register_forward_pre_hook(lambda *_: hooks.append(1))
    model(*make_batch(tiny_config, SENTENCES)).last_hidden_state.sum().backward()
    assert (len(calls), len(hooks)) == (2, 1)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_state_of_one_direction_is_refused(tiny_model: ElmoModel) -> None:
    ids, mask = make_batch(tiny_model.config, SENTENCES)
    state = tiny_model(ids, mask).state._replace(backward=None)
    with pytest.raises(ValueError, match="Expected a state with a backward direction"):
        tiny_model(ids, mask, state=state)
