"""The model: layers against plain PyTorch, invariants, errors."""

import pytest
import torch
from batches import SENTENCES, TOLERANCE, make_batch, make_ids
from torch.testing import assert_close

from hf_elmo import (
    ElmoConfig,
    ElmoModel,
    ElmoState,
)
from hf_elmo.inference.backend import Backend, choose_backend


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


def make_lexicon_config(tiny_config: ElmoConfig) -> ElmoConfig:
    return ElmoConfig(
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


def test_word_input_models_read_a_lexicon(tiny_config: ElmoConfig) -> None:
    config = make_lexicon_config(tiny_config)
    out = ElmoModel(config)(word_input_ids=torch.tensor([[3, 4, 5], [6, 0, 0]]))
    assert out.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    with pytest.raises(ValueError, match="Expected no input_ids, got some"):
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


def test_frozen_models_stay_in_evaluation_mode(tiny_model: ElmoModel) -> None:
    assert tiny_model.train().forward_lstm.training
    assert not tiny_model.requires_grad_(False).train().forward_lstm.training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close(tiny_model: ElmoModel, dtype: torch.dtype) -> None:
    batch = make_batch(tiny_model.config, SENTENCES)
    with torch.no_grad():
        expected = tiny_model(*batch).elmo
        out = tiny_model.to(dtype)(*batch).elmo
    assert out.dtype == dtype
    assert_close(out.float(), expected, rtol=0, atol=0.06)  # 2**-8 of 4, a few times over


def test_first_hidden_state_is_what_the_lstms_read(tiny_model: ElmoModel) -> None:
    ids, mask = make_batch(tiny_model.config, SENTENCES)
    out = tiny_model(ids, mask, output_hidden_states=True)
    out.hidden_states[0].retain_grad()
    out.last_hidden_state[0, 0].sum().backward()
    gradient = out.hidden_states[0].grad
    assert gradient[0].abs().sum(-1).all()  # both directions: from every word of the sentence
    assert gradient[1:].abs().sum() == 0


def test_input_embeddings_are_the_table_of_characters(tiny_model: ElmoModel) -> None:
    table = torch.nn.Embedding(10, 4)
    tiny_model.set_input_embeddings(table)
    assert tiny_model.get_input_embeddings() is tiny_model.token_encoder.char_embedding is table


def test_the_row_of_no_token_is_zero_and_stays_so(tiny_config: ElmoConfig) -> None:
    model = ElmoModel(tiny_config)
    table = model.token_encoder.char_embedding.weight
    assert table[0].abs().sum() == 0
    model.token_encoder(torch.zeros(1, 50, dtype=torch.long), None).sum().backward()
    assert table.grad[0].abs().sum() == 0


def test_a_state_of_fewer_layers_or_another_type_is_refused(tiny_model: ElmoModel) -> None:
    batch = make_batch(tiny_model.config, SENTENCES)
    state = tiny_model(*batch).state
    with pytest.raises(ValueError, match="Expected an ElmoState, got tuple"):
        tiny_model(*batch, state=tuple(state))
    fewer = ElmoState(*(tuple(part[:1] for part in direction) for direction in state))
    with pytest.raises(ValueError, match="Expected a state of 2 layers, got 1"):
        tiny_model(*batch, state=fewer)


def test_a_state_of_one_direction_is_refused(tiny_model: ElmoModel) -> None:
    ids, mask = make_batch(tiny_model.config, SENTENCES)
    state = tiny_model(ids, mask).state._replace(backward=None)
    with pytest.raises(ValueError, match="backward direction, got one without"):
        tiny_model(ids, mask, state=state)


def test_one_direction_runs_alone_as_it_does_beside_the_other(tiny_model: ElmoModel) -> None:
    packed, sizes = torch.randn(5, 8), [2, 2, 1]
    state = tiny_model.zero_state(2, packed)
    with torch.no_grad():
        layers, new = tiny_model.run_bilm(packed, sizes)
        ((forward, _),) = tiny_model.run_lstms((packed, None), sizes, state)
        ((backward, end),) = tiny_model.run_lstms((None, packed), sizes, state)
    assert_close(torch.cat([forward[-1], backward[-1]], -1), layers[-1], rtol=0, atol=0)
    assert_close(end, new.backward, rtol=0, atol=0)


def test_directions_read_inputs_of_their_own(tiny_model: ElmoModel) -> None:
    inputs, sizes = (torch.randn(6, 8), torch.randn(6, 8)), [2, 2, 2]
    state = tiny_model.zero_state(2, inputs[0])
    with torch.no_grad():
        both = tiny_model.run_lstms(inputs, sizes, state, reverse=False)
        turned = inputs[1].view(3, 2, 8).flip(0).flatten(0, 1)
        ((backward, end),) = tiny_model.run_lstms((None, turned), sizes, state)
    assert_close(both[1][0][-1].view(3, 2, 8).flip(0).flatten(0, 1), backward[-1])
    assert_close(both[1][1], end)


@pytest.mark.parametrize("wrong", [-1, 262, 10**6, 2**32, 2**40])
@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_ids_out_of_range_are_refused(tiny_model: ElmoModel, wrong: int, backend: Backend) -> None:
    model, (ids, mask) = choose_backend(tiny_model, backend), make_batch(tiny_model.config, [["a"]])
    ids[0, 0, 2] = wrong
    with pytest.raises(ValueError, match="Expected input_ids from 0 to 261, got "):
        model(ids, mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64])
def test_ids_that_are_no_integers_are_refused(tiny_model: ElmoModel, dtype: torch.dtype) -> None:
    ids, mask = make_batch(tiny_model.config, [["a"]])
    with pytest.raises(TypeError, match="Expected input_ids of integers, got torch"):
        tiny_model(ids.to(dtype), mask)


@pytest.mark.parametrize("row", [-1, 10, 2**32 + 1])
def test_rows_out_of_the_lexicon_are_refused(tiny_config: ElmoConfig, row: int) -> None:
    model = ElmoModel(make_lexicon_config(tiny_config))
    with pytest.raises(ValueError, match="Expected word_input_ids from 0 to 9, got"):
        model(word_input_ids=torch.tensor([[3, row]]))
