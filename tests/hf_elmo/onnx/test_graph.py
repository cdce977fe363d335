"""The ONNX graphs are valid, and their 8-bit products exact where they can be."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from hf_elmo import ElmoModel
from hf_elmo.onnx.graph import Graph, declare, make_direction, make_encoder


def test_7_bit_weights_cannot_saturate_16_bit_sums(tiny_model: ElmoModel) -> None:
    built = Graph(tiny_model.state_dict(), "int8")
    built.multiply("x", "forward_lstm.layers.0.state_weight")
    weight = built.initializers["forward_lstm.layers.0.state_weight_8"]
    assert 0 < 2 * 255 * abs(weight.astype(int)).max() < 2**15


@pytest.mark.parametrize("by_row", [False, True], ids=["one scale", "a scale a row"])
def test_products_in_8_bits_are_near_float64(by_row: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(96, 64), torch.randn(5, 64)
    graph = Graph({"weight": weight}, "int8")
    product = graph.multiply("x", "weight", by_row=by_row)
    graph.nodes.append(helper.make_node("Identity", [product], ["y"]))
    number = TensorProto.FLOAT
    model = graph.make("product", [declare("x", number, 5, 64)], [declare("y", number, 5, 96)])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (actual,) = session.run(None, {"x": x.numpy()})
    expected = (x.double() @ weight.double().T).numpy()
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error < 0.03


def test_the_graphs_pass_the_checker(tiny_model: ElmoModel) -> None:
    weights = tiny_model.state_dict()
    onnx.checker.check_model(make_encoder(tiny_model.config, weights).model)
    for quantization in (None, "int8"):
        built = make_direction(tiny_model.config, weights, "backward", quantization)
        assert not built.initializers  # all of so small a model are in the graph
        onnx.checker.check_model(built.model)
