"""Convert old ELMo checkpoints to the Hugging Face layout and back."""

from convert.checkpoint import ConversionError
from convert.conversion import convert_checkpoint
from convert.detect import FORMATS

__all__ = ["FORMATS", "ConversionError", "convert_checkpoint"]
