"""`spacy_elmo.ElmoTok2Vec.v1`: ELMo and a component's own embedding as encoder input."""

from collections.abc import Callable
from functools import partial
from typing import Any

from spacy.util import registry
from thinc.api import Maxout, NumpyOps, chain, concatenate, with_array

from .architecture import ThincModel


@registry.architectures("spacy_elmo.ElmoTok2Vec.v1")
def make_elmo_tok2vec(
    elmo: ThincModel,
    encode: ThincModel,
    embed: ThincModel | None = None,
    elmo_output: ThincModel | None = None,
    maxout_pieces: int = 3,
) -> ThincModel:
    """Make an encoder with ELMo concatenated to its input and, optionally, to its output.

    Computes `h = encode(maxout([elmo; embed]))`, then `[h; elmo_output]` if given. These are
    `[x; ELMo]` and `[h; ELMo]` of Peters et al. 2018, section 3.3, each with its own mix.

    Args:
        elmo: Listener for the input.
        encode: Encoder, such as `spacy.MaxoutWindowEncoder.v2` or `spacy.TorchBiLSTMEncoder.v1`.
        embed: Embedding, such as `spacy.MultiHashEmbed.v2`, or a listener to a shared `tok2vec`;
            None = only ELMo.
        elmo_output: Second listener, for the output; None = only `h`.
        maxout_pieces: Pieces of the maxout layer that maps the input to the encoder's width.

    Returns:
        A model from docs to vectors, `(tokens, width)` each.
    """
    width = encode.get_dim("nO")
    inputs = elmo if embed is None else concatenate(elmo, embed)
    reduce: ThincModel = Maxout(nO=width, nP=maxout_pieces, normalize=True)
    for node in reduce.walk():
        if type(node.ops) is NumpyOps:  # NumPy's products, four times as fast as BLIS's
            node.ops = NumpyOps(use_blis=False)
    hidden: ThincModel = chain(inputs, with_array(reduce), encode)
    hidden.set_dim("nO", width)
    if elmo_output is None:
        hidden.init = partial(_ignore_outputs, hidden.init)
        return hidden
    elmo_output.attrs["position"] = "output"
    outputs: ThincModel = concatenate(hidden, elmo_output)
    if elmo_output.has_dim("nO"):
        outputs.set_dim("nO", width + elmo_output.get_dim("nO"))
    outputs.init = partial(_ignore_outputs, outputs.init)
    return outputs


def _ignore_outputs(init: Callable[..., Any], model: ThincModel, **samples: Any) -> None:
    """Initialise a model by a sample of its input, `X`, without `Y`, one of the component's output.

    spaCy's static vectors would take the width of `Y` for their own.
    """
    init(model, X=samples.get("X"))
