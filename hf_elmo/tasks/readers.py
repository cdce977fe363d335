"""Old path of `hf_elmo.tasks.data.sentences` (deprecated)."""

from hf_elmo.moved import redirect

__getattr__ = redirect(__name__, "hf_elmo.tasks.data.sentences")
