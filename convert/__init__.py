"""Convert old ELMo checkpoints to the Hugging Face layout and back."""

from convert.conversion import convert_checkpoint
from convert.format_detection import FORMATS
from convert.layout import ConversionError

__all__ = ["FORMATS", "ConversionError", "convert_checkpoint"]
