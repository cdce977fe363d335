"""The layouts of products: each gives the same, or is not used."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hf_elmo import lstm_products


def test_without_the_private_operators_a_row_has_the_common_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = torch.randn(128, 64)
    packed = lstm_products.pack_weight(weight)
    monkeypatch.setattr(lstm_products, "has_fbgemm", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_nbytes", raise_attribute_error)
    assert lstm_products.pack_for_row(weight, packed) is packed


def raise_attribute_error(*arguments: Any) -> None:
    raise AttributeError


def test_another_engine_of_quantization_gives_a_row_the_common_layout() -> None:
    weight = torch.randn(128, 64)
    packed, before = lstm_products.pack_int8_weight(weight), torch.backends.quantized.engine
    torch.backends.quantized.engine = "qnnpack"
    try:
        assert lstm_products.pack_for_row(weight, packed) is packed
    finally:
        torch.backends.quantized.engine = before


def test_products_in_8_bits_that_saturate_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturate(*arguments: Any) -> Tensor:
        return multiply_int8_row(*arguments).clamp(max=40)

    multiply_int8_row = lstm_products.multiply_int8_row
    monkeypatch.setattr(lstm_products, "multiply_int8_row", saturate)
    assert not lstm_products.can_multiply_int8_row.__wrapped__("x86")


@pytest.mark.parametrize("value", [0.0, 1e-40, torch.inf, torch.nan])
def test_a_row_of_odd_numbers_in_int8_stays_finite_or_is_seen_not_to_be(value: float) -> None:
    weight, x = torch.randn(512, 64), torch.zeros(1, 64)
    x[0, 3] = value
    packed = lstm_products.pack_int8_weight(weight)
    for product in (
        lstm_products.multiply(x, packed),
        lstm_products.multiply_row(x, lstm_products.pack_for_row(weight, packed)),
    ):
        if np.isfinite(value):
            assert_close(product, x @ weight.T)
        else:
            assert not product.isfinite().any()
