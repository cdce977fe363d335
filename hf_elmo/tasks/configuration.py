"""Base configuration of all task models: the biLM, and the vectors that represent a word."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from hf_elmo.configuration_elmo import ElmoConfig


@strict
class ElmoTaskConfig(PreTrainedConfig):
    """Configuration of a task model: its biLM, and the vectors that represent a word.

    Args:
        elmo: The biLM's configuration. It also sets how the layers are mixed (which layers,
            learned or not, layer norm, the paper's lambda), and whether the biLM is frozen.
        elmo_at: Place where ELMo is concatenated: the input of the task's encoder (`input`), its
            output (`output`), both, each with its own mix (`both`), or no place (`none`).
        elmo_dropout: Dropout probability for each mix of layers, in training only.
        static_vocab_size: Rows of the table of static vectors, including row 0 for all other words;
            0 = no static vectors.
        static_size: Width of a static vector.
        static_checksum: Checksum of the words of the static vectors; None = unknown.
        trains_static: Whether static vectors are trained.
        char_size: Width of a character's vector; 0 = the task has no character encoder.
        char_filter_width: Number of characters that a filter sees at once.
        num_char_filters: Number of filters over a word's characters.
        char_dropout: Dropout probability for the characters' vectors, in training only.
        max_chars: Largest number of bytes read per word by the task's own character encoder, with
            the marks of start and end.
        scores: Scores on the dev examples, for the model card; None = not known.
    """

    sub_configs = {"elmo": ElmoConfig}  # noqa: RUF012 (transformers' own)

    elmo: ElmoConfig | dict[str, Any] | None = None
    elmo_at: Literal["input", "output", "both", "none"] = "input"
    elmo_dropout: float | int = 0.0
    static_vocab_size: int = 0
    static_size: int = 0
    static_checksum: int | None = None
    trains_static: bool = False
    char_size: int = 0
    char_filter_width: int = 3
    num_char_filters: int = 0
    char_dropout: float | int = 0.0
    max_chars: int = 20
    scores: dict[str, float] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.elmo is None:
            self.elmo = ElmoConfig()
        elif isinstance(self.elmo, dict):
            # A path of the computer on which the model was trained is not part of the model.
            self.elmo = ElmoConfig(**{**self.elmo, "_name_or_path": ""})
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]  # transformers' own

    @property
    def bilm(self) -> ElmoConfig:
        """The biLM's configuration."""
        if not isinstance(self.elmo, ElmoConfig):
            raise TypeError(f"Expected an ElmoConfig, got {type(self.elmo).__name__}.")
        return self.elmo

    @property
    def freeze_bilm(self) -> bool:
        """Whether the biLM's weights are left untrained."""
        return self.bilm.freeze_bilm

    @property
    def num_mixes(self) -> int:
        """Number of mixes of the biLM's layers: one for each place where ELMo is read."""
        return {"none": 0, "input": 1, "output": 1, "both": 2}[self.elmo_at]

    @property
    def input_size(self) -> int:
        """Width of a word's vector at the input of the task's encoder."""
        return self.static_size + self.num_char_filters + self._size_at("input")

    @property
    def elmo_output_size(self) -> int:
        """Width that ELMo adds to the output of the task's encoder."""
        return self._size_at("output")

    @property
    def label_names(self) -> list[str]:
        """Names of the labels, in the order of their numbers."""
        return [name for _, name in sorted((self.id2label or {}).items())]

    @property
    def label_rows(self) -> dict[str, int]:
        """The number of each label, by its name."""
        return {name: row for row, name in enumerate(self.label_names)}

    def _size_at(self, place: str) -> int:
        return int(self.bilm.hidden_size or 0) if self.elmo_at in (place, "both") else 0

    def validate_dropouts(self) -> None:
        """Check that each dropout probability leaves something."""
        for name, value in vars(self).items():
            if name.endswith("dropout") and value is not None and not 0 <= value < 1:
                raise ValueError(f"Expected {name} from 0 to below 1, got {value}.")

    def validate_words(self) -> None:
        """Check that a word has at least one vector, and that the sizes fit together."""
        for name, size in (("static_vocab_size", "static_size"), ("char_size", "num_char_filters")):
            if (getattr(self, name) > 0) != (getattr(self, size) > 0):
                raise ValueError(
                    f"Expected {name} and {size} both 0 or both above 0, got "
                    f"{getattr(self, name)} and {getattr(self, size)}."
                )
        if self.input_size == 0:
            raise ValueError(
                "Expected words to come in by ELMo, by static vectors or by characters; the input "
                "has no such source. Give static vectors (--vectors), or read ELMo there."
            )
        if self.char_size and not self.bilm.char_embedding_size:
            raise ValueError(
                "Expected a biLM that reads characters, since the task does: they share a "
                "tokenizer. Set char_size and num_char_filters to 0."
            )
        if not 0 < self.char_filter_width <= self.max_chars:
            raise ValueError(
                f"Expected char_filter_width from 1 to max_chars {self.max_chars}, got "
                f"{self.char_filter_width}."
            )
