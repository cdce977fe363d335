"""Convert old ELMo checkpoints to the Hugging Face layout and back."""

from convert.checkpoint import ConversionError
from convert.conversion import FORMATS, convert_checkpoint

__all__ = ["FORMATS", "ConversionError", "convert_checkpoint"]
