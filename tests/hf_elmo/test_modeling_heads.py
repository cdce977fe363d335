"""The heads: losses against plain PyTorch, what is trained, what is returned."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from batches import CLASSIFIERS, HEADS, SENTENCES, make_batch, make_classifier
from torch.optim.swa_utils import AveragedModel
from torch.testing import assert_close

from hf_elmo import (
    ElmoConfig,
    ElmoFeatures,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoPreTrainedModel,
)
from hf_elmo.modeling_heads import pool_words


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


def test_language_model_knows_the_rows_of_its_boundaries(tiny_config: ElmoConfig) -> None:
    rows = {"sentence_start_target_id": 5, "sentence_end_target_id": 6}
    model = make_classifier(ElmoForPreTraining, tiny_config, vocab_size=7, **rows)
    out = model(*make_batch(tiny_config, [SENTENCES[0]]), labels=torch.full((1, 6), -100))
    forward = -out.forward_logits[0, 6].log_softmax(-1)[6]
    backward = -out.backward_logits[0, 0].log_softmax(-1)[5]
    assert_close(out.loss, (forward + backward) / 2)


@pytest.mark.parametrize("head", [ElmoForPreTraining, *CLASSIFIERS])
def test_heads_begin_with_the_state_that_is_given(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel]
) -> None:
    model = make_classifier(head, tiny_config, vocab_size=7)
    batch = make_batch(tiny_config, SENTENCES)
    state = model.elmo(*batch).state
    seen: list[object] = []
    model.elmo.register_forward_pre_hook(
        lambda _, args, options: seen.append(options.get("state", args[-1])), with_kwargs=True
    )
    first, second = model(*batch, state=state), model(*batch)
    assert seen == [state, None]
    assert (first[0] - second[0]).abs().max() > 0.01


def test_language_model_returns_its_state(language_model: ElmoForPreTraining) -> None:
    batch = make_batch(language_model.config, SENTENCES)
    expected = language_model.elmo(*batch, keep_sentence_boundaries=True).state
    assert_close(language_model(*batch).state.forward, expected.forward)


def test_a_classifier_of_words_refuses_labels_of_another_shape(tiny_config: ElmoConfig) -> None:
    model = make_classifier(ElmoForTokenClassification, tiny_config)
    batch = make_batch(tiny_config, SENTENCES)
    with pytest.raises(ValueError, match=r"labels of shape \(5, 6\), got \(6, 5\)"):
        model(*batch, labels=torch.zeros(6, 5, dtype=torch.long))


def test_language_model_refuses_labels_of_another_shape(
    language_model: ElmoForPreTraining,
) -> None:
    batch = make_batch(language_model.config, SENTENCES)
    with pytest.raises(ValueError, match=r"labels of shape \(5, 6\), got \(5, 5\)"):
        language_model(*batch, labels=make_labels("right")[:, 1:])


@pytest.mark.parametrize("model_class", HEADS)
def test_rows_of_several_sentences_are_refused(
    model_class: type[ElmoPreTrainedModel], tiny_config: ElmoConfig
) -> None:
    tiny_config.vocab_size = 7
    model = model_class(tiny_config)
    ids, mask = make_batch(tiny_config, SENTENCES)
    places = torch.arange(6).expand(5, 6)  # as of DataCollatorWithFlattening
    with pytest.raises(ValueError, match="Expected one sentence per row, got position_ids"):
        model(ids, mask, position_ids=places)


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


def test_token_classifier_reads_its_own_mix(tiny_config: ElmoConfig) -> None:
    model = make_classifier(ElmoForTokenClassification, tiny_config)
    batch = make_batch(tiny_config, SENTENCES)
    with torch.no_grad():
        out = model(*batch)
        layers = torch.stack(model.elmo(*batch, output_hidden_states=True).hidden_states)
    mix = model.features.scalar_mixes[0]
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


@pytest.mark.parametrize("num_items", [None, 0])
def test_token_classifier_has_no_loss_without_labels(
    tiny_config: ElmoConfig, num_items: int | None
) -> None:
    model = make_classifier(ElmoForTokenClassification, tiny_config)
    ids, mask = make_batch(tiny_config, SENTENCES)
    loss = model(ids, mask, labels=torch.full((5, 6), -100), num_items_in_batch=num_items).loss
    loss.backward()
    assert loss == 0
    assert not model.classifier.weight.grad.any()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_sentences_are_pooled_over_their_words(
    tiny_config: ElmoConfig, pooling: str, side: str
) -> None:
    model = make_classifier(ElmoForSequenceClassification, tiny_config, classifier_pooling=pooling)
    ids, mask = make_batch(tiny_config, SENTENCES, side)
    with torch.no_grad():
        logits = model(ids, mask).logits
        mixed = model.features(model.elmo, ids, mask)[0][0]
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
    mixes, outputs = model.features(model.elmo, *batch)
    for mix, part in zip(model.features.scalar_mixes, mixes, strict=True):
        assert_close(part, mix(outputs.hidden_states))
    assert (mixes[0] - mixes[1]).abs().max() > 0.1
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
    assert not model.elmo.training
    model.train()
    assert not model.elmo.training
    assert model.features.training
    model(ids, mask).logits.sum().backward()
    trained = {name for name, value in model.named_parameters() if value.grad is not None}
    assert trained == {
        "classifier.weight",
        "classifier.bias",
        "features.scalar_mixes.0.weights",
        "features.scalar_mixes.0.gamma",
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
    mix = model.features.scalar_mixes[0]
    assert mix.weights.tolist() == [1.0, 0.0, -1.0]
    assert mix.gamma.tolist() == [2.0]


@pytest.mark.parametrize("options", [None, {"use_reentrant": False}])
def test_gradient_checkpointing_keeps_the_gradient_of_the_state(
    tiny_model: ElmoModel, options: dict[str, Any] | None
) -> None:
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            tiny_model.activation_checkpointing_enable(options)
        tiny_model.zero_grad()
        tiny_model.config.dropout = 0.0
        state = tiny_model.train()(*make_batch(tiny_model.config, SENTENCES)).state
        sum(part.square().sum() for part in (*state.forward, *state.backward)).backward()
        gradients.append({name: weight.grad for name, weight in tiny_model.named_parameters()})
    assert_close(gradients[0], gradients[1])


def test_gradient_checkpointing_changes_no_gradient_of_a_head(tiny_config: ElmoConfig) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = make_classifier(
            ElmoForTokenClassification,
            tiny_config,
            freeze_bilm=False,
            dropout=0.0,
            classifier_dropout=0.0,
        )
        if checkpointing:
            model.activation_checkpointing_enable()
        model.train()(*make_batch(tiny_config, SENTENCES)).logits.sum().backward()
        gradients.append({name: value.grad for name, value in model.named_parameters()})
    assert_close(gradients[0], gradients[1])


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
    model = make_classifier(head, tiny_config, mix_l2=0.5, **changes)
    batch = make_batch(tiny_config, SENTENCES)
    mean = model(*batch, labels=labels).loss
    loss = model(*batch, labels=labels, num_items_in_batch=torch.tensor(4 * labels.numel())).loss
    assert_close(loss, mean / 4)


def test_a_part_of_a_batch_without_labels_adds_no_loss(tiny_config: ElmoConfig) -> None:
    model = make_classifier(ElmoForSequenceClassification, tiny_config, mix_l2=1.0)
    batch = make_batch(tiny_config, SENTENCES)
    loss = model(*batch, labels=torch.full((5,), -100), num_items_in_batch=torch.tensor(3)).loss
    assert loss == 0
    loss.backward()
    assert model.classifier.weight.grad.abs().max() == 0


def test_the_loss_of_a_language_model_has_the_precision_of_its_weights(
    language_model: ElmoForPreTraining,
) -> None:
    batch = make_batch(language_model.config, SENTENCES)
    labels = torch.ones(5, 6, dtype=torch.long)
    assert language_model.double()(*batch, labels=labels).loss.dtype == torch.float64
    assert language_model.bfloat16()(*batch, labels=labels).loss.dtype == torch.float32


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
    with torch.no_grad():
        model(*make_batch(tiny_config, SENTENCES))
    assert modes == [not freeze_bilm, False]


@pytest.mark.parametrize("head", CLASSIFIERS)
def test_squares_of_the_mix_are_added_to_the_loss(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel]
) -> None:
    batch = make_batch(tiny_config, SENTENCES)
    labels = torch.ones((5, 6) if head is ElmoForTokenClassification else 5, dtype=torch.long)
    losses = []
    for mix_l2 in (0.0, 0.5):
        model = make_classifier(head, tiny_config, num_scalar_mixes=2, mix_l2=mix_l2)
        losses.append(model(*batch, labels=labels).loss)
    squares = sum(mix.weights.square().sum() for mix in model.features.scalar_mixes)
    assert_close(losses[1], losses[0] + 0.5 * squares)
    half = model(*batch, labels=labels, num_items_in_batch=2 * labels.numel()).loss
    assert_close(half, losses[1] / 2)  # so that what two calls add up to has the squares once


@pytest.mark.parametrize(("mix_layers", "number"), [("top", 2), ("words", 0)])
def test_one_layer_alone_can_be_mixed(
    tiny_config: ElmoConfig, mix_layers: str, number: int
) -> None:
    changes = {"mix_layers": mix_layers, "mix_l2": 1.0, "mix_gamma": 2.0}
    config = ElmoConfig(**{**tiny_config.to_dict(), **changes})
    model = ElmoForTokenClassification(config).eval()
    (mixed,), outputs = model.features(model.elmo, *make_batch(config, SENTENCES))
    assert_close(mixed, 2 * outputs.hidden_states[number], rtol=0, atol=0)
    assert_close(outputs.elmo, mixed, rtol=0, atol=0)
    assert model.features.penalty() == 0
    mixed.square().sum().backward()
    mix = model.features.scalar_mixes[0]
    assert not mix.weights.requires_grad
    assert mix.gamma.grad.abs() > 0


def test_the_average_of_models_that_mix_one_layer_mixes_that_layer(tiny_config: ElmoConfig) -> None:
    model = ElmoForTokenClassification(ElmoConfig(**tiny_config.to_dict() | {"mix_layers": "top"}))
    average = AveragedModel(model)
    for _ in range(2):
        average.update_parameters(model)
    assert average.module.features.scalar_mixes[0].weights.softmax(0).tolist() == [0, 0, 1]


@pytest.mark.parametrize("head", CLASSIFIERS)
def test_a_mix_can_be_left_as_it_is(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel]
) -> None:
    model = head(ElmoConfig(**{**tiny_config.to_dict(), "train_mix": False}))
    assert list_trained(model) == {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize("head", CLASSIFIERS)
@pytest.mark.parametrize("settings", [{"train_mix": False}, {"mix_layers": "top"}])
def test_a_loaded_model_trains_the_same_weights(
    tiny_config: ElmoConfig,
    head: type[ElmoPreTrainedModel],
    settings: dict[str, Any],
    tmp_path: Path,
) -> None:
    model = make_classifier(head, tiny_config, **settings)
    model.features.scalar_mixes[0].set_initial_values()
    model.save_pretrained(tmp_path)
    assert list_trained(head.from_pretrained(tmp_path)) == list_trained(model)


def test_labels_with_a_hole_in_the_mask_are_refused(tiny_config: ElmoConfig) -> None:
    tiny_config.vocab_size = 7
    model = ElmoForPreTraining(tiny_config)
    ids, mask = make_batch(tiny_config, SENTENCES)
    labels = torch.ones_like(mask)
    assert model(ids, mask, labels=labels).loss.isfinite()
    mask[0, 1] = 0
    with pytest.raises(ValueError, match="an attention_mask without a 0 between two words"):
        model(ids, mask, labels=labels)


def list_trained(model: ElmoPreTrainedModel) -> set[str]:
    """List the names of all parameters that are trained."""
    return {name for name, value in model.named_parameters() if value.requires_grad}


def test_layers_that_are_there_already_are_mixed_alike(tiny_config: ElmoConfig) -> None:
    model = make_classifier(ElmoForTokenClassification, tiny_config, mix_layer_norm="sentence")
    batch = make_batch(tiny_config, SENTENCES)
    mixes, outputs = model.features(model.elmo, *batch)
    layers = torch.stack(outputs.hidden_states)
    assert_close(model.features.mix(layers, batch[1]), mixes, rtol=0, atol=0)


def test_layer_norm_in_a_classifier_is_over_the_words_of_each_sentence(
    tiny_config: ElmoConfig,
) -> None:
    model = make_classifier(ElmoForTokenClassification, tiny_config, mix_layer_norm="sentence")
    logits = model(*make_batch(tiny_config, SENTENCES)).logits
    alone = model(*make_batch(tiny_config, SENTENCES[2:3])).logits
    assert_close(logits[2:3, :3], alone)
    plain = make_classifier(ElmoForTokenClassification, tiny_config)
    assert (plain(*make_batch(tiny_config, SENTENCES[2:3])).logits - alone).abs().max() > 0.01


def test_a_classifier_of_sentences_drops_out_pooled_vectors_alone(tiny_config: ElmoConfig) -> None:
    changes = {"classifier_dropout": 0.5}
    model = make_classifier(ElmoForSequenceClassification, tiny_config, **changes)
    seen: list[torch.Tensor] = []
    model.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    batch = make_batch(tiny_config, SENTENCES)
    model(*batch)
    model.train()(*batch)
    kept = seen[1] != 0
    assert_close(seen[1][kept], 2 * seen[0][kept])
    assert 0.2 < kept.sum() / (seen[0] != 0).sum() < 0.8


def test_features_drop_out_their_mixes_in_training_alone(tiny_config: ElmoConfig) -> None:
    features = ElmoFeatures(tiny_config, num_mixes=1, dropout=0.5)
    layers = torch.ones(3, 5, 6, 16)
    assert_close(features.eval().mix(layers)[0], layers[0])
    assert set(features.train().mix(layers)[0].flatten().tolist()) == {0.0, 2.0}


@pytest.mark.filterwarnings("ignore")  # PyTorch's own: it looks at every attribute
@pytest.mark.parametrize(
    "export",
    [
        torch.export.export,
        torch.jit.trace,
        partial(torch.onnx.export, f="absent.onnx", dynamo=False),  # else by torch.export
    ],
)
def test_export_is_refused_in_a_sentence(
    tiny_config: ElmoConfig, export: Callable[..., object]
) -> None:
    model = make_classifier(ElmoForTokenClassification, tiny_config)
    with pytest.raises(NotImplementedError, match="ELMo cannot be exported or traced"):
        export(model, make_batch(tiny_config, SENTENCES))


@pytest.mark.filterwarnings("ignore")  # PyTorch's own: it looks at every attribute
@pytest.mark.parametrize("head", HEADS)
def test_compiled_models_do_as_they_did(
    tiny_config: ElmoConfig, head: type[ElmoPreTrainedModel]
) -> None:
    model = make_classifier(head, tiny_config, vocab_size=7, freeze_bilm=False)
    batch = make_batch(tiny_config, SENTENCES)
    compiled = torch.compile(model, backend="eager")
    assert_close(compiled(*batch)[0], model(*batch)[0])
    compiled(*batch)[0].sum().backward()
    assert model.base_model.token_encoder.projection.weight.grad is not None


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, which peft asks
def test_peft_trains_the_mixes_beside_adapters(tiny_config: ElmoConfig) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=2, target_modules=["projection"], modules_to_save=["features", "classifier"]
    )
    model = peft.get_peft_model(make_classifier(ElmoForTokenClassification, tiny_config), config)
    labels = torch.ones(5, 6, dtype=torch.long)
    model.train()(*make_batch(tiny_config, SENTENCES), labels=labels).loss.backward()
    names = {name for name, value in model.named_parameters() if value.grad is not None}
    saved = "base_model.model.features.modules_to_save.default.scalar_mixes.0"
    assert {f"{saved}.weights", f"{saved}.gamma"} <= names
    assert any("lora_A" in name for name in names)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, which peft asks
def test_peft_adapts_the_weights_of_the_lstms(tiny_config: ElmoConfig) -> None:
    peft = pytest.importorskip("peft")
    names = ["input_weight", "state_weight", "projection_weight"]
    config = peft.LoraConfig(r=2, target_modules=[], target_parameters=names)
    batch = make_batch(tiny_config, SENTENCES)
    model = make_classifier(ElmoForTokenClassification, tiny_config)
    expected = model(*batch)[0]
    model = peft.get_peft_model(model, config).eval()
    for name, value in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value)  # zeros at first, which change nothing
    with torch.no_grad():
        adapted = model(*batch)[0]
    model(*batch)[0].sum().backward()
    trained = {name for name, value in model.named_parameters() if value.grad is not None}
    assert len([name for name in trained if "lora_A" in name]) == 12  # of 3 weights of 4 LSTMs
    with model.disable_adapter():
        assert_close(model(*batch)[0], expected)
    assert (adapted - expected).abs().max() > 0.01
    assert_close(model.merge_and_unload()(*batch)[0], adapted)


def test_padding_is_not_pooled() -> None:
    x = torch.randn(3, 5, 2, dtype=torch.float64) - 3
    mask = torch.arange(5) < torch.tensor([3, 0, 4])[:, None]
    for row, length in enumerate([3, 0, 4]):
        words = x[row, :length] if length else torch.zeros(1, 2).double()
        assert_close(pool_words(x, mask, "mean")[row], words.mean(dim=0))
        assert_close(pool_words(x, mask, "max")[row], words.max(dim=0).values)


def test_the_mean_of_a_long_text_does_not_overflow() -> None:
    x = torch.full((1, 30_000, 2), 3.0, dtype=torch.float16)
    mask = torch.ones(1, 30_000, dtype=torch.bool)
    assert_close(pool_words(x, mask, "mean"), x[:, 0])


def test_a_batch_without_tokens_pools_to_zeros() -> None:
    x, mask = torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.bool)
    assert not pool_words(x, mask, "max").any()
    assert not pool_words(x, mask, "mean").any()
