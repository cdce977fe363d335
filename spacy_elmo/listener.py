"""`spacy_elmo.ElmoListener.v1`: a component's own, learned mix of the pipeline's ELMo layers.

A listener holds no biLM. It reads the layers of docs from the `elmo` component before it. The docs
can be in any batch, and the `elmo` component need not have processed them.
"""

from typing import Any

from spacy.util import registry
from thinc.api import Model

from .architecture import ThincModel
from .layers_and_gradients import SourceLink
from .learned_mix import LEARN_RATE_SCALE, LayerNorm, forward, init

LISTENER, MIX = "spacy_elmo.ElmoListener.v1", "spacy_elmo.ElmoMix.v1"
LISTENER_NAME, MIX_NAME = "elmo-listener", "elmo-mix"
ANY_UPSTREAM = "*"
# For each replaced listener of an `ElmoTok2Vec`: its section, key and replacement. Added by
# `replace_listener_config`, used by `replace_listener` after spaCy has changed the configuration.
_REPLACED: list[tuple[dict[str, Any], str, dict[str, Any]]] = []


@registry.architectures(LISTENER)
def make_elmo_listener(
    upstream: str = ANY_UPSTREAM,
    width: int | None = None,
    layer_norm: LayerNorm = "none",
    dropout: float = 0.0,
    l2: float = 0.0,
    train_gamma: bool = True,
    learn_rate_scale: float = LEARN_RATE_SCALE,
) -> ThincModel:
    """Make a model that mixes the layers of the pipeline's `elmo` component with learned weights.

    Computes `gamma * sum_j softmax(w)_j * layer_j` (Peters et al. 2018, eq. 1) with learned `w` and
    `gamma`, then dropout. The initial mix is the mean of the layers; the optimizer's weight decay
    pulls the mix towards this mean.

    Args:
        upstream: Name of the `elmo` component; `"*"` = the last one before this component.
        width: Output width; None = set when the pipeline is initialized.
        layer_norm: `"sentence"` = normalize each layer over each sentence before mixing.
        dropout: Dropout probability of the output, in training only.
        l2: The paper's lambda: `l2 * ||w||^2` is added to the loss.
        train_gamma: Learn gamma; otherwise it is 1.
        learn_rate_scale: Learning rate of the mix as a multiple of the other parameters' rate.

    Returns:
        A model from docs to vectors, `(tokens, width)` each.

    Raises:
        ValueError: If dropout is out of range.
    """
    if not 0 <= dropout < 1:
        raise ValueError(f"Expected dropout from 0 to below 1, got {dropout}.")
    attrs = {
        "upstream": upstream,
        "link": SourceLink(),
        "position": "input",
        "layer_norm": layer_norm,
        "mix_dropout": dropout,  # spaCy overwrites all attributes named dropout_rate
        "l2": l2,
        "train_gamma": train_gamma,
        "learn_rate_scale": learn_rate_scale,
    }
    params: dict[str, Any] = {"mix": None, "gamma": None}
    dims = {"nO": width}
    return Model(LISTENER_NAME, forward, init=init, dims=dims, params=params, attrs=attrs)


@registry.architectures(MIX)
def make_elmo_mix(model: ThincModel, listener: ThincModel) -> ThincModel:
    """Make a copy of a listener with its own, frozen biLM, for `nlp.replace_listeners`.

    Args:
        model: Model of `spacy_elmo.ElmoModel.v1`.
        listener: Model of `spacy_elmo.ElmoListener.v1`.

    Returns:
        A model from docs to vectors, `(tokens, width)` each.
    """
    mix: ThincModel = listener.copy()
    mix.name = MIX_NAME
    mix.layers.append(model)
    for name in ("link", "upstream"):
        mix.attrs.pop(name)
    return mix


def replace_listener(bilm: ThincModel, listener: ThincModel, elmo: object) -> ThincModel:
    """Make the mix, with its own biLM, that replaces a listener in `nlp.replace_listeners`."""
    for tok2vec, key, config in _REPLACED:
        if not any(value is config for value in tok2vec.values()):  # spaCy replaced the section
            content = dict(config)
            config.clear()
            config.update({**tok2vec, key: content})
    _REPLACED.clear()
    return make_elmo_mix(bilm, listener)


def replace_listener_config(
    bilm_config: dict[str, Any], tok2vec_config: dict[str, Any]
) -> dict[str, Any]:
    """Make the configuration that replaces a listener.

    `nlp.replace_listeners` calls this for each listener's path in the configuration.

    Args:
        bilm_config: Section of the biLM.
        tok2vec_config: Section `model.tok2vec` of the component: a listener, or an `ElmoTok2Vec`,
            whose first remaining listener is replaced.
    """
    sections = {key: tok2vec_config.get(key) for key in ("elmo", "elmo_output")}
    place = next((key for key, x in sections.items() if x and x["@architectures"] == LISTENER), "")
    listener = dict(tok2vec_config[place] if place else tok2vec_config)
    mix = {"@architectures": MIX, "model": dict(bilm_config), "listener": listener}
    if place:
        _REPLACED.append((tok2vec_config, place, mix))
    return mix
