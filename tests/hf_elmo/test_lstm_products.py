"""The layouts of products: each gives the same, or is not used."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from hf_elmo import lstm_products
from hf_elmo.lstm_products import (
    can_multiply_int8,
    can_multiply_int8_row,
    can_pack,
    multiply,
    pack_for_row,
    pack_int8_weight,
    pack_weight,
)

LAYOUTS = {
    "float32": lambda weight: weight,
    "float32, packed": pack_weight,
    "float32, one row": lambda weight: pack_for_row(weight, pack_weight(weight)),
    "bfloat16": lambda weight: weight.bfloat16(),
    "bfloat16, packed": lambda weight: pack_weight(weight.bfloat16()),
    "bfloat16, one row": lambda weight: pack_for_row(
        weight.bfloat16(), pack_weight(weight.bfloat16())
    ),
    "int8, packed": pack_int8_weight,
    "int8, one row": lambda weight: pack_for_row(weight, pack_int8_weight(weight)),
}
TOLERANCES = {"float32": 1e-5, "bfloat16": 0.03, "int8": 0.03}


@pytest.mark.parametrize("addend", ["none", "of all rows", "of each row"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_product(layout: str, addend: str) -> None:
    torch.manual_seed(0)
    precision = layout.partition(",")[0]
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    weight, x = torch.randn(128, 64) / 8, torch.randn(1 if "one row" in layout else 3, 64)
    added = {"none": None, "of all rows": torch.randn(128), "of each row": torch.randn(len(x), 128)}
    expected = x @ weight.T if added[addend] is None else x @ weight.T + added[addend]
    actual = multiply(
        x.to(dtype),
        LAYOUTS[layout](weight),
        None if added[addend] is None else added[addend].to(dtype),
    )
    assert actual.dtype == dtype
    assert_close(actual.float(), expected, rtol=0, atol=TOLERANCES[precision])


def forget_probes() -> None:
    for probe in (can_pack, can_multiply_int8, can_multiply_int8_row):
        probe.cache_clear()


@pytest.fixture
def without_operator(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A PyTorch in which one private operator fails when it is run."""

    def fail(*arguments: Any) -> None:
        raise RuntimeError("no such product")

    namespace, name = request.param
    monkeypatch.setattr(namespace, name, fail)
    forget_probes()
    yield
    forget_probes()


@pytest.mark.parametrize(
    "without_operator",
    [(torch.ops.mkldnn, "_reorder_linear_weight"), (torch.ops.mkldnn, "_linear_pointwise")],
    indirect=True,
)
@pytest.mark.usefixtures("without_operator")
def test_a_weight_stays_as_it_is_where_packed_products_fail() -> None:
    weight = torch.randn(128, 64)
    assert pack_weight(weight) is weight
    assert pack_for_row(weight, weight) is weight


@pytest.mark.parametrize(
    "without_operator",
    [(torch.ops.onednn, "qlinear_prepack"), (torch.ops.onednn, "qlinear_pointwise")],
    indirect=True,
)
@pytest.mark.usefixtures("without_operator")
def test_int8_is_refused_where_its_packing_or_its_product_fails() -> None:
    with pytest.raises(ValueError, match="Expected int8 products of oneDNN"):
        pack_int8_weight(torch.randn(128, 64))


@pytest.mark.parametrize(
    "without_operator",
    [
        (torch.ops.quantized, "linear_prepack"),
        (torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32"),
    ],
    indirect=True,
)
@pytest.mark.usefixtures("without_operator")
def test_a_row_in_int8_has_the_common_layout_where_its_own_fails() -> None:
    weight = torch.randn(128, 64)
    packed = pack_int8_weight(weight)
    assert pack_for_row(weight, packed) is packed


def test_a_row_has_the_common_layout_without_fbgemm(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(128, 64)
    packed = pack_weight(weight)
    monkeypatch.setattr(lstm_products, "has_fbgemm", lambda: False)
    assert pack_for_row(weight, packed) is packed


def test_a_row_has_the_common_layout_where_no_block_fits() -> None:
    weight = torch.randn(60, 64)
    packed = pack_weight(weight)
    assert pack_for_row(weight, packed) is packed


def test_another_engine_of_quantization_gives_a_row_the_common_layout() -> None:
    weight = torch.randn(128, 64)
    packed, before = pack_int8_weight(weight), torch.backends.quantized.engine
    torch.backends.quantized.engine = "qnnpack"
    try:
        assert pack_for_row(weight, packed) is packed
    finally:
        torch.backends.quantized.engine = before


def test_products_in_8_bits_that_saturate_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturate(*arguments: Any) -> Tensor:
        return multiply_int8_row(*arguments).clamp(max=40)

    multiply_int8_row = lstm_products.multiply_int8_row
    monkeypatch.setattr(lstm_products, "multiply_int8_row", saturate)
    assert not can_multiply_int8_row.__wrapped__("x86")


@pytest.mark.parametrize("value", [0.0, 1e-40, torch.inf, torch.nan])
def test_a_row_of_odd_numbers_in_int8_stays_finite_or_is_seen_not_to_be(value: float) -> None:
    weight, x = torch.randn(512, 64), torch.zeros(1, 64)
    x[0, 3] = value
    packed = pack_int8_weight(weight)
    for product in (
        multiply(x, packed),
        multiply(x, pack_for_row(weight, packed)),
    ):
        if np.isfinite(value):
            assert_close(product, x @ weight.T)
        else:
            assert not product.isfinite().any()
