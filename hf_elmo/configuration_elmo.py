"""The configuration of a biLM: sizes, special ids, mix of layers."""

import json
import math
import zlib
from pathlib import Path
from typing import Any, Literal, Self

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

# The byte vocabulary of bilm-tf (`UnicodeCharsVocabulary`) and AllenNLP (`ELMoCharacterMapper`):
# bytes 0..255, then these five, all shifted by one since id 0 means "no token".
NUM_BYTE_CHARACTERS = 262
SENTENCE_START_CHAR_ID = 257
SENTENCE_END_CHAR_ID = 258
WORD_START_CHAR_ID = 259
WORD_END_CHAR_ID = 260
CHAR_PADDING_ID = 261
SPECIAL_CHAR_IDS = (  # names of the ids in the configuration and the tokenizer
    "sentence_start_char_id",
    "sentence_end_char_id",
    "word_start_char_id",
    "word_end_char_id",
    "char_padding_id",
)
MAX_CHARACTERS_PER_TOKEN = 50  # of bilm-tf and AllenNLP

ORIGINAL_CHAR_FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]

MAX_LAYERS = 1000  # of LSTMs, highways, filters or mixes
MAX_CHARACTERS = 10_000  # of a word
MAX_WIDTH = 2**20
MAX_ROWS = 2**31 - 1  # of a table: ids have 32 bits
MAX_VALUE = 3e38  # of a float32


@strict
class ElmoConfig(PreTrainedConfig):
    """Configuration of a biLM, for all variants that ELMo implementations have produced.

    The defaults are the published "original" model (Peters et al. 2018): 93.6 M parameters.

    Args:
        char_vocab_size: Number of rows of the character table, with row 0 for "no token".
        char_embedding_size: Width of a character vector; 0 = the model reads no characters.
        max_characters_per_token: Number of cells (ids) of a word, word start and end included.
        char_filters: `[width, number of filters]` of each convolution, in the order of the
            outputs; None = those of the original model.
        char_activation: Activation after the maximum over positions.
        num_highway_layers: Number of highway layers after the convolutions.
        use_token_projection: Whether `[lexicon vector; filters]` is projected to `projection_size`.
            If not, their widths must sum to `projection_size`.
        sentence_start_char_id: Character id of `<S>`, between word start and word end.
        sentence_end_char_id: Character id of `</S>`, between word start and word end.
        word_start_char_id: Character id in the first cell of each word.
        word_end_char_id: Character id in the cell after the last character of each word.
        char_padding_id: Character id in the cells after the word end; trained like any character.
        word_vocab_size: Number of rows of the lexicon, with row 0 for "no token"; 0 = no lexicon.
        word_embedding_size: Width of a lexicon vector; 0 = no lexicon.
        sentence_start_word_id: Row of `<S>` in the lexicon.
        sentence_end_word_id: Row of `</S>` in the lexicon.
        projection_size: Width of one direction's output (P).
        cell_size: Width of the LSTM cell (D).
        use_cell_projection: Whether an LSTM's output is projected from D to P. If not, D must be P.
        num_hidden_layers: Number of LSTM layers in each direction.
        bidirectional: Whether there is a backward direction.
        forget_bias: Added to the forget gate's bias when the LSTM runs: 1 for TensorFlow's weights,
            0 for weights whose bias already includes it.
        cell_clip: Bound of the cell's absolute values; None = no bound.
        projection_clip: Bound of the projected output's absolute values; None = no bound. As in
            TensorFlow, an output that is not projected is not clipped.
        use_residual: Whether each layer except the first adds its input to its output.
        hidden_size: Width of the output; derived: 2 * P if bidirectional, else P.
        vocab_size: Number of target words of the language model's softmax; 0 = no softmax.
        sentence_start_target_id: Row of `<S>` in the softmax.
        sentence_end_target_id: Row of `</S>` in the softmax.
        mix_weights: Weights of the mix `ElmoModelOutput.elmo`, before the softmax: one for the word
            vectors and one for each LSTM layer. None = zeros, the mean of the layers.
        mix_gamma: Factor of that mix.
        mix_layer_norm: Normalisation of each layer before the mix: `"none"`, over the words of each
            `"sentence"`, or over the words of the whole `"batch"` as bilm-tf does (AllenNLP also
            counts `<S>` and `</S>`).
        mix_layers: Layers that are mixed: all, the top LSTM layer alone, or the word vectors alone.
        mix_l2: The paper's lambda: heads add `mix_l2 * ||w||^2` to the loss, w = weights of a mix.
        train_mix: Whether heads learn the weights and gamma of their mixes.
        dropout: Dropout probability for the inputs of LSTM layers and of the softmax.
        num_scalar_mixes: Number of mixes that a classifier learns; it reads them side by side.
        classifier_dropout: Dropout probability for the input of classifiers.
        classifier_pooling: How `ElmoForSequenceClassification` reduces a sentence to one vector.
        freeze_bilm: Whether heads, except the language model's, freeze the biLM's weights.
    """

    model_type = "elmo"
    # Trainer's evaluation gathers a head's outputs; all except the logits are too large for this.
    keys_to_ignore_at_inference = ["last_hidden_state", "elmo", "hidden_states", "attention_mask"]  # noqa: RUF012 (transformers' own)

    char_vocab_size: int = NUM_BYTE_CHARACTERS
    char_embedding_size: int = 16
    max_characters_per_token: int = MAX_CHARACTERS_PER_TOKEN
    char_filters: list[list[int]] | None = None
    char_activation: Literal["relu", "tanh"] = "relu"
    num_highway_layers: int = 2
    use_token_projection: bool = True
    sentence_start_char_id: int = SENTENCE_START_CHAR_ID
    sentence_end_char_id: int = SENTENCE_END_CHAR_ID
    word_start_char_id: int = WORD_START_CHAR_ID
    word_end_char_id: int = WORD_END_CHAR_ID
    char_padding_id: int = CHAR_PADDING_ID

    word_vocab_size: int = 0
    word_embedding_size: int = 0
    sentence_start_word_id: int | None = None
    sentence_end_word_id: int | None = None

    projection_size: int = 512
    cell_size: int = 4096
    use_cell_projection: bool = True
    num_hidden_layers: int = 2
    bidirectional: bool = True
    forget_bias: float | int = 1.0
    cell_clip: float | int | None = 3.0
    projection_clip: float | int | None = 3.0
    use_residual: bool = True
    hidden_size: int | None = None
    vocab_size: int = 0
    sentence_start_target_id: int = 0
    sentence_end_target_id: int = 1

    mix_weights: list[float | int] | None = None
    mix_gamma: float | int = 1.0
    mix_layer_norm: Literal["none", "sentence", "batch"] = "none"
    mix_layers: Literal["all", "top", "words"] = "all"
    mix_l2: float | int = 0.0
    train_mix: bool = True

    dropout: float | int = 0.1
    num_scalar_mixes: int = 1
    classifier_dropout: float | int = 0.5
    classifier_pooling: Literal["mean", "max"] = "mean"
    freeze_bilm: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        num_labels = kwargs.get("num_labels")
        if isinstance(num_labels, int) and not 0 <= num_labels <= MAX_WIDTH:  # each gets a name
            raise ValueError(f"Expected num_labels from 0 to {MAX_WIDTH}, got {num_labels}.")
        if self.char_filters is None:
            self.char_filters = [list(pair) for pair in ORIGINAL_CHAR_FILTERS]
        if self.char_embedding_size == 0:
            self.char_filters = []
        if self.hidden_size is None:
            self.hidden_size = self.output_size
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]  # transformers' own

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """Make a configuration from the content of `config.json`.

        Raises:
            ValueError: If the content belongs to another model type.
        """
        found = config_dict.get("model_type", cls.model_type)
        if found != cls.model_type:
            raise ValueError(f"Expected model_type {cls.model_type!r}, got {found!r}.")
        return super().from_dict(config_dict, **kwargs)

    @property
    def num_filters(self) -> int:
        """Width of the char-CNN's output: the number of all its filters."""
        return sum(number for _, number in self.char_filters or [])

    @property
    def output_size(self) -> int:
        """Width of the output: one direction's, or both directions' side by side."""
        return self.projection_size * (2 if self.bidirectional else 1)

    @property
    def num_mixed_layers(self) -> int:
        """Number of layers in a scalar mix: the word vectors and each LSTM layer."""
        return self.num_hidden_layers + 1

    @property
    def initial_mix_weights(self) -> list[float]:
        """Weights of the mix before the softmax, one per layer; -inf for layers left out."""
        weights = self.mix_weights or [0.0] * self.num_mixed_layers
        if self.mix_layers == "all":
            return list(weights)
        kept = 0 if self.mix_layers == "words" else self.num_hidden_layers
        return [weight if i == kept else -math.inf for i, weight in enumerate(weights)]

    @property
    def custom_pipelines(self) -> dict[str, dict[str, Any]]:
        """Pipeline class for token classifiers, which the stock pipeline cannot run.

        `transformers.pipeline` reads this. It needs `trust_remote_code=True`, or the class itself
        as `pipeline_class`. The class is beside this file, or in the folder of a model with code.
        """
        if "ElmoForTokenClassification" not in (self.architectures or []):
            return {}
        place = "" if self.is_remote_code() else f"{Path(__file__).parent}--"
        impl = f"{place}pipelines_elmo.ElmoTokenClassificationPipeline"
        model = "AutoModelForTokenClassification"
        return {task: {"impl": impl, "pt": model} for task in ("token-classification", "ner")}

    def validate_token_ids(self) -> None:
        """Skip transformers' check: Trainer copies the tokenizer's `pad_token_id`.

        It is not the id of a target word, and `vocab_size` is the number of target words.
        """

    def validate_elmo_sizes(self) -> None:
        """Check that every width and count is in its range."""
        for name, low, high in (
            ("projection_size", 1, MAX_WIDTH),
            ("cell_size", 1, MAX_WIDTH),
            ("num_hidden_layers", 1, MAX_LAYERS),
            ("num_scalar_mixes", 1, MAX_LAYERS),
            ("num_highway_layers", 0, MAX_LAYERS),
            ("num_filters", 0, MAX_WIDTH),
            ("char_embedding_size", 0, MAX_WIDTH),
            ("char_vocab_size", 1, MAX_ROWS),
            ("word_embedding_size", 0, MAX_WIDTH),
            ("word_vocab_size", 0, MAX_ROWS),
            ("vocab_size", 0, MAX_ROWS),
            ("sentence_start_target_id", 0, MAX_ROWS),
            ("sentence_end_target_id", 0, MAX_ROWS),
            ("forget_bias", -MAX_VALUE, MAX_VALUE),
            ("mix_gamma", -MAX_VALUE, MAX_VALUE),
            ("mix_l2", 0, MAX_VALUE),
        ):
            if not low <= getattr(self, name) <= high:  # refuses NaN too
                raise ValueError(
                    f"Expected {name} from {low} to {high}, got {getattr(self, name)}."
                )
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            if clip is not None and not 0 < clip <= MAX_VALUE:
                raise ValueError(f"Expected {name} above 0 and finite, or None, got {clip}.")
        for name in ("dropout", "classifier_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"Expected {name} from 0 to below 1, got {getattr(self, name)}.")
        if not self.use_cell_projection and self.cell_size != self.projection_size:
            raise ValueError(
                "Without a cell projection, cell_size and projection_size must be equal, "
                f"got {self.cell_size} and {self.projection_size}."
            )
        if self.hidden_size != self.output_size:
            raise ValueError(f"Expected hidden_size {self.output_size}, got {self.hidden_size}.")

    def validate_elmo_words(self) -> None:
        """Check that the biLM reads characters, a lexicon, or both, and that their widths fit."""
        if (self.word_embedding_size == 0) != (self.word_vocab_size == 0):
            raise ValueError(
                "Expected word_vocab_size and word_embedding_size both 0 or both above 0, got "
                f"{self.word_vocab_size} and {self.word_embedding_size}."
            )
        if self.char_embedding_size == 0 and self.word_embedding_size == 0:
            raise ValueError("Expected characters or a word lexicon; both widths are 0.")
        for name in ("sentence_start_word_id", "sentence_end_word_id"):
            row = getattr(self, name)
            if self.word_vocab_size and (row is None or not 0 < row < self.word_vocab_size):
                raise ValueError(
                    f"Expected {name} from 1 to {self.word_vocab_size - 1}, got {row}."
                )
        width = self.word_embedding_size + self.num_filters
        if not self.use_token_projection and width != self.projection_size:
            raise ValueError(
                "Without a token projection, the word vector and the filters must sum to "
                f"projection_size {self.projection_size}, got {width}."
            )

    def validate_elmo_characters(self) -> None:
        """Check the char-CNN's filters and the special characters' ids."""
        if self.char_embedding_size == 0:
            return
        if self.char_filters is None or not 0 < len(self.char_filters) <= MAX_LAYERS:
            raise ValueError(
                f"Expected 1 to {MAX_LAYERS} char_filters [[width, number], ...], got "
                f"{len(self.char_filters or [])}."
            )
        for pair in self.char_filters:
            if len(pair) != 2 or min(pair) < 1 or pair[0] > self.max_characters_per_token:
                raise ValueError(
                    "Expected char_filters [width, number] with a width from 1 to "
                    f"max_characters_per_token {self.max_characters_per_token}, got {pair}."
                )
        if not 3 <= self.max_characters_per_token <= MAX_CHARACTERS:
            raise ValueError(
                "Expected max_characters_per_token from 3 (a character and two marks) to "
                f"{MAX_CHARACTERS}, got {self.max_characters_per_token}."
            )
        for name in SPECIAL_CHAR_IDS:
            if not 0 < getattr(self, name) < self.char_vocab_size:
                raise ValueError(
                    f"Expected {name} from 1 to {self.char_vocab_size - 1}, "
                    f"got {getattr(self, name)}."
                )

    def checksum(self) -> int:
        """Return a checksum of the fields that can change vectors, to notice another model."""
        fields = self.to_diff_dict()
        for name in ("transformers_version", "architectures", "dtype"):
            fields.pop(name, None)
        return zlib.crc32(json.dumps(fields, sort_keys=True).encode())

    def validate_elmo_mix(self) -> None:
        """Check that the configured mix has a finite weight for every layer."""
        if self.mix_weights is not None and len(self.mix_weights) != self.num_mixed_layers:
            raise ValueError(
                f"Expected {self.num_mixed_layers} mix_weights (the word vectors and each LSTM "
                f"layer), got {len(self.mix_weights)}."
            )
        if not all(abs(weight) <= MAX_VALUE for weight in self.mix_weights or []):
            raise ValueError(f"Expected finite mix_weights, got {self.mix_weights}.")
