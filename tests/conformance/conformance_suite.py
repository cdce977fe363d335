"""What transformers' model tests need to know of our models; `conformance.py` runs them."""

import unittest
from typing import Any

import torch
from transformers.models.auto import modeling_auto

from hf_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
)

# The tests look classes up by name in these, which registration does not touch.
for names, model_class in (
    (modeling_auto.MODEL_MAPPING_NAMES, ElmoModel),
    (modeling_auto.MODEL_FOR_PRETRAINING_MAPPING_NAMES, ElmoForPreTraining),
    (modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES, ElmoForSequenceClassification),
    (modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES, ElmoForTokenClassification),
):
    names["elmo"] = model_class.__name__

from tests.test_modeling_common import ModelTesterMixin  # noqa: E402 (reads the names above)


class ElmoModelTester:
    """A tiny configuration and a batch for it."""

    batch_size = 5
    seq_length = 7
    num_hidden_layers = 2
    hidden_size = 16
    is_training = True

    def get_config(self) -> ElmoConfig:
        return ElmoConfig(
            char_embedding_size=4,
            char_filters=[[1, 4], [2, 8]],
            num_highway_layers=1,
            max_characters_per_token=9,
            projection_size=self.hidden_size // 2,
            cell_size=16,
            num_hidden_layers=self.num_hidden_layers,
            vocab_size=99,
            freeze_bilm=False,  # the tests look for a gradient of every parameter
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[ElmoConfig, dict[str, torch.Tensor]]:
        config = self.get_config()
        shape = (self.batch_size, self.seq_length, config.max_characters_per_token)
        mask = torch.ones(shape[:2], dtype=torch.long)
        mask[1, 3:] = 0
        return config, {
            "input_ids": torch.randint(1, config.char_vocab_size, shape),
            "attention_mask": mask,
        }


class ElmoModelTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (
        ElmoModel,
        ElmoForPreTraining,
        ElmoForSequenceClassification,
        ElmoForTokenClassification,
    )
    has_attentions = False
    test_resize_embeddings = False  # the table of characters is no vocabulary that grows
    test_mismatched_shapes = False  # `vocab_size` shapes the softmax alone; classifiers have none

    def setUp(self) -> None:
        self.model_tester = ElmoModelTester()

    def _prepare_for_class(
        self, inputs_dict: dict[str, Any], model_class: type, return_labels: bool = False
    ) -> dict[str, Any]:
        inputs = super()._prepare_for_class(inputs_dict, model_class, return_labels)
        if return_labels and model_class is ElmoForPreTraining:
            inputs["labels"] = torch.zeros(inputs["input_ids"].shape[:2], dtype=torch.long)
        return inputs

    @unittest.skip("reentrant checkpointing is refused: it would drop the gradient of the state")
    def test_training_gradient_checkpointing_use_reentrant_true(self) -> None: ...
