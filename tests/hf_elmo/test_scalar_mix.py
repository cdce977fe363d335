"""The scalar mix: against its formula, with layer norm, errors."""

import pytest
import torch
from torch.testing import assert_close

from hf_elmo import (
    ElmoScalarMix,
)


def test_mix_is_a_softmax_weighted_sum() -> None:
    layers = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(1))
    mix = ElmoScalarMix(3, weights=[0.0, 1.0, -1.0], gamma=2.0)
    weights = torch.tensor([0.0, 1.0, -1.0]).exp()
    expected = 2.0 * sum(w * x for w, x in zip(weights / weights.sum(), layers, strict=True))
    assert_close(mix(layers), expected)
    assert_close(mix(list(layers)), expected)
    assert mix.penalty().item() == 2.0


def test_a_fixed_mix_gets_no_gradient_even_if_another_program_asks_for_it() -> None:
    mix = ElmoScalarMix(2, train_weights=False, train_gamma=False).requires_grad_()  # as peft does
    layers = torch.ones(2, 1, 1, 1, requires_grad=True)
    mix(layers).sum().backward()
    assert (mix.weights.grad, mix.gamma.grad) == (None, None)
    assert layers.grad is not None


def test_a_mix_can_start_from_whole_numbers() -> None:
    mix = ElmoScalarMix(2, weights=[0, 1], gamma=2)
    assert [*mix.weights.tolist(), *mix.gamma.tolist()] == [0.0, 1.0, 2.0]


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


def test_layer_norm_of_large_values_in_half_precision_is_finite() -> None:
    layers = 200 * torch.randn(3, 1, 50, 64, generator=torch.Generator().manual_seed(1))
    mix = ElmoScalarMix(3, layer_norm="sentence")
    assert_close(mix(layers.half()), mix(layers), rtol=0, atol=0.01)


def test_an_unknown_layer_norm_is_refused() -> None:
    for layer_norm in (False, None, "Sentence"):
        with pytest.raises(ValueError, match=r"Expected a layer_norm of .*'batch'.*, got "):
            ElmoScalarMix(3, layer_norm=layer_norm)  # type: ignore[arg-type]
