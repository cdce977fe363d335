from typing import Any

import pytest
import torch
from torch import Tensor

from hf_elmo import ElmoConfig
from spacy_elmo.mix import MixSettings, mix_words


@pytest.fixture
def layers() -> Tensor:
    """Layers of two words, shape `(layers, words, width)`."""
    return torch.arange(12, dtype=torch.float).reshape(3, 2, 2)


def test_mix_without_settings_is_the_mean(layers: Tensor, tiny_config: ElmoConfig) -> None:
    mixed = mix_words(layers, MixSettings(), tiny_config)
    torch.testing.assert_close(mixed, layers.mean(dim=0))


def test_the_models_own_mix_stands_in_for_what_is_not_set(
    layers: Tensor, tiny_config: ElmoConfig
) -> None:
    tiny_config.mix_weights, tiny_config.mix_gamma = [0.0, 1.0, 2.0], 0.5
    shares = torch.tensor([0.0, 1.0, 2.0]).softmax(0)
    expected = torch.tensordot(shares, layers, 1)
    torch.testing.assert_close(mix_words(layers, MixSettings(), tiny_config), 0.5 * expected)
    mixed = mix_words(layers, MixSettings(gamma=2.0), tiny_config)
    torch.testing.assert_close(mixed, 2 * expected)


@pytest.mark.parametrize("norm", ["batch", "sentence"])
def test_layer_norm_is_over_the_words_of_the_sentence(
    norm: str, layers: Tensor, tiny_config: ElmoConfig
) -> None:
    tiny_config.mix_layer_norm = norm
    centred = layers - layers.mean(dim=(1, 2), keepdim=True)
    expected = centred / layers.std(dim=(1, 2), keepdim=True, correction=0)
    mixed = mix_words(layers, MixSettings(), tiny_config)
    torch.testing.assert_close(mixed, expected.mean(dim=0))


def test_chosen_layers_keep_their_weights(layers: Tensor, tiny_config: ElmoConfig) -> None:
    tiny_config.mix_weights = [0.0, 1.0, 2.0]
    mixed = mix_words(layers, MixSettings(layers=[2, 0]), tiny_config)
    shares = torch.tensor([2.0, 0.0]).softmax(0)
    torch.testing.assert_close(mixed, shares[0] * layers[2] + shares[1] * layers[0])


def test_whole_numbers_are_weights_too(layers: Tensor, tiny_config: ElmoConfig) -> None:
    expected = mix_words(layers, MixSettings(weights=[0.0, 0.0, 1.0], gamma=2.0), tiny_config)
    mixed = mix_words(layers, MixSettings(weights=[0, 0, 1], gamma=2), tiny_config)
    torch.testing.assert_close(mixed, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": [0, 1], "weights": [0.0]}, "Expected 2 mix weights, .* got 1"),
        ({"layers": []}, "Expected at least one layer"),
        (
            {"layers": "top"},
            "Expected mix.layers to be a list of whole numbers, or null, got 'top'",
        ),
        ({"layers": [0.5]}, r"Expected mix.layers .* got \[0.5\]"),
        ({"layers": [True]}, r"Expected mix.layers .* got \[True\]"),
        ({"layers": -1}, "Expected mix.layers .* got -1"),
        ({"weights": ["a"]}, "Expected mix.weights to be a list of numbers"),
        ({"gamma": "x"}, "Expected mix.gamma to be a number, or null, got 'x'"),
        ({"wheights": [0.0]}, "Expected layers, weights, gamma in mix, got wheights"),
    ],
)
def test_wrong_settings_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixSettings.from_config(settings)


def test_layers_that_the_model_has_not_are_an_error(
    layers: Tensor, tiny_config: ElmoConfig
) -> None:
    with pytest.raises(ValueError, match=r"from 0 .* to 2 .* got \[3\]"):
        mix_words(layers, MixSettings(layers=[3]), tiny_config)


def test_weights_of_another_number_of_layers_are_an_error(
    layers: Tensor, tiny_config: ElmoConfig
) -> None:
    with pytest.raises(ValueError, match=r"Expected 3 mix weights .* got 2"):
        mix_words(layers, MixSettings(weights=[0.0, 1.0]), tiny_config)


def test_a_layer_that_the_model_leaves_out_counts_where_it_is_asked_for(
    layers: Tensor, tiny_config: ElmoConfig
) -> None:
    tiny_config.mix_layers = "top"
    torch.testing.assert_close(mix_words(layers, MixSettings(), tiny_config), layers[-1])
    asked = mix_words(layers, MixSettings(layers=[0]), tiny_config)
    torch.testing.assert_close(asked, layers[0])
