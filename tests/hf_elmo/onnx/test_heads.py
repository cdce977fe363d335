"""A scalar mix in a graph is that of PyTorch; the heads are tested where they are exported."""

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto

from hf_elmo.onnx.graph import Graph, declare
from hf_elmo.onnx.heads import Layers, Output, declare_outputs, mix_layers
from hf_elmo.scalar_mix import mix_layers as mix_in_torch


@pytest.mark.parametrize("layer_norm", ["none", "sentence", "batch"])
def test_a_mix_leaves_out_a_layer_whose_weight_is_minus_infinity(layer_norm: str) -> None:
    torch.manual_seed(0)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    layers = torch.randn(2, 2, 3, 4) * mask[..., None]
    weights = torch.tensor([0.5, -torch.inf])
    graph = Graph({})
    bilm = Layers("layers", "is_word")
    mixed = mix_layers(graph, bilm, weights.numpy(), 2.0, layer_norm)
    inputs = [
        declare("layers", TensorProto.FLOAT, 2, 2, 3, 4),
        declare("is_word", TensorProto.BOOL, 2, 3, 1),
    ]
    outputs = declare_outputs(graph, [Output("mix", mixed, (2, 3, 4))])
    proto = graph.make("mix", inputs, outputs, inline=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    feeds = {"layers": layers.numpy(), "is_word": mask[..., None].numpy()}
    expected = mix_in_torch(layers, weights, 2.0, layer_norm=layer_norm, mask=mask)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected.numpy(), atol=1e-5)
