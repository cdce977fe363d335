"""ELMo's biLM as a transformers model."""

from hf_elmo.configuration_elmo import ElmoConfig

__all__ = ["ElmoConfig"]
