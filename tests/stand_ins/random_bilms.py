"""Random small biLMs of every configuration, and batches for them."""

import random
from typing import Any

import torch
from torch import Tensor

from hf_elmo import ElmoConfig


def draw_config(chance: random.Random) -> ElmoConfig:
    """Draw any of the configurations that `ElmoConfig` allows, small."""
    has_characters = chance.random() < 0.8
    has_lexicon = not has_characters or chance.random() < 0.4
    cell_size, use_projection = chance.choice([8, 12]), chance.random() < 0.7
    return ElmoConfig(
        char_embedding_size=4 if has_characters else 0,
        max_characters_per_token=12,
        char_filters=[[1, 3], [3, 4]],
        num_highway_layers=chance.randint(0, 2),
        char_activation=chance.choice(["relu", "tanh"]),
        word_vocab_size=20 if has_lexicon else 0,
        word_embedding_size=5 if has_lexicon else 0,
        sentence_start_word_id=1 if has_lexicon else None,
        sentence_end_word_id=2 if has_lexicon else None,
        projection_size=chance.choice([4, 6]) if use_projection else cell_size,
        cell_size=cell_size,
        use_cell_projection=use_projection,
        num_hidden_layers=chance.randint(1, 3),
        bidirectional=chance.random() < 0.7,
        forget_bias=chance.choice([0.0, 1.0]),
        cell_clip=chance.choice([None, 0.5, 3]),
        projection_clip=chance.choice([None, 0.2, 3]),
        use_residual=chance.random() < 0.5,
    )


def draw_batch(config: ElmoConfig, batch: int, tokens: int) -> dict[str, Tensor]:
    """Draw sentences with padding on either side, and between words."""
    mask = torch.rand(batch, tokens) < 0.7
    inputs = {"attention_mask": mask.long()}
    if config.char_embedding_size:
        inputs["input_ids"] = torch.randint(1, 262, (batch, tokens, 12)) * mask[..., None]
    if config.word_embedding_size:
        inputs["word_input_ids"] = torch.randint(1, 20, (batch, tokens)) * mask
    return inputs


def run(model: Any, inputs: dict[str, Tensor], state: Any = None) -> tuple[Any, ...]:
    with torch.no_grad():
        out = model(**inputs, state=state, output_hidden_states=True)
    return out.hidden_states, out.elmo, out.attention_mask, out.state
