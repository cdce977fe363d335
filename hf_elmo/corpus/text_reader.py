"""Old path of `hf_elmo.text.text_reader` (deprecated)."""

from hf_elmo.moved import redirect

__getattr__ = redirect(__name__, "hf_elmo.text.text_reader")
