"""Convert old ELMo checkpoints to the Hugging Face layout and back."""

from convert.conversion import FORMATS, convert_checkpoint
from convert.layout import ConversionError

__all__ = ["FORMATS", "ConversionError", "convert_checkpoint"]
