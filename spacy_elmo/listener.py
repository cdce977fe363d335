"""`spacy_elmo.ElmoListener.v1`: a component's own, learned mix of the pipeline's ELMo layers.

A listener holds no biLM. It asks the `elmo` component before it for the layers of the docs at hand,
whatever batch they are in and whether or not that component has seen them.
"""

from typing import Any

from spacy.util import registry

from .architecture import ThincModel
from .layer_source import SourceLink
from .learned_mix import LayerNorm, make_mix

LISTENER = "spacy_elmo.ElmoListener.v1"
LISTENER_NAME = "elmo-listener"
MIX_NAME = "elmo-mix"
# Sections in which a listener was replaced, and what by: from `replace_listener_config` to
# `replace_listener`, which spaCy calls after it has put that in its place.
_REPLACED: list[tuple[dict[str, Any], str, dict[str, Any]]] = []
ANY_UPSTREAM = "*"
# Adam moves a number by about its learning rate in each step, however steep its gradient is. At
# spaCy's 0.001 a mix would stay where it began, so it learns this many times faster.
LEARN_RATE_SCALE = 10.0


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
    """Mix the layers of the pipeline's `elmo` component with weights that are learned.

    Computes `gamma * sum_j softmax(w)_j * layer_j` (Peters et al. 2018, eq. 1), then dropout. It
    starts as the mean of the layers, and weight decay of the optimiser pulls it back there.

    Args:
        upstream: Name of the `elmo` component; `"*"` = the last one before.
        width: Of the output; None = found out when the pipeline is initialised.
        layer_norm: Whether each layer is normalised over each sentence before it is mixed.
        dropout: Probability for the output, in training only.
        l2: The paper's lambda: `l2 * ||w||^2` is added to the loss.
        train_gamma: Whether gamma is learned; otherwise it is 1.
        learn_rate_scale: How many times faster than other parameters the mix learns.

    Returns:
        A model from docs to vectors, `(tokens, width)` each.
    """
    model = make_mix(
        LISTENER_NAME,
        dropout=dropout,
        layer_norm=layer_norm,
        l2=l2,
        train_gamma=train_gamma,
        learn_rate_scale=learn_rate_scale,
    )
    model.attrs.update(upstream=upstream, link=SourceLink())
    if width is not None:
        model.set_dim("nO", width)
    return model


@registry.architectures("spacy_elmo.ElmoMix.v1")
def make_elmo_mix(
    model: ThincModel,
    layer_norm: LayerNorm = "none",
    dropout: float = 0.0,
    l2: float = 0.0,
    train_gamma: bool = True,
    learn_rate_scale: float = LEARN_RATE_SCALE,
) -> ThincModel:
    """Mix the layers of a biLM that belongs to this component alone, and is frozen.

    It is what `nlp.replace_listeners` puts in a listener's place.

    Args:
        model: What `spacy_elmo.ElmoModel.v1` makes.
        layer_norm: As for the listener.
        dropout: As for the listener.
        l2: As for the listener.
        train_gamma: As for the listener.
        learn_rate_scale: As for the listener.

    Returns:
        A model from docs to vectors, `(tokens, width)` each.
    """
    mix = make_mix(
        MIX_NAME,
        dropout=dropout,
        layer_norm=layer_norm,
        l2=l2,
        train_gamma=train_gamma,
        learn_rate_scale=learn_rate_scale,
    )
    mix.layers.append(model)
    return mix


def replace_listener(bilm: ThincModel, listener: ThincModel, elmo: object) -> ThincModel:
    """Turn a listener into a mix with a biLM of its own; `nlp.replace_listeners` calls this.

    Args:
        bilm: A copy of the biLM.
        listener: The listener.
        elmo: The component that it listens to.
    """
    for tok2vec, key, config in _REPLACED:
        if not any(value is config for value in tok2vec.values()):  # the path was that of tok2vec
            content = dict(config)
            config.clear()
            config.update({**tok2vec, key: content})
    _REPLACED.clear()
    mix: ThincModel = listener.copy()
    mix.name = MIX_NAME
    mix.layers.append(bilm)
    for name in ("link", "upstream"):
        mix.attrs.pop(name)
    return mix


def replace_listener_config(
    bilm_config: dict[str, Any], tok2vec_config: dict[str, Any]
) -> dict[str, Any]:
    """Describe what `replace_listener` makes; `nlp.replace_listeners` calls this for each path.

    Args:
        bilm_config: Section of the biLM.
        tok2vec_config: Section `model.tok2vec` of the component: a listener, or an `ElmoTok2Vec`
            with listeners inside: the first one that is not replaced yet counts.
    """
    sections = {key: tok2vec_config.get(key) for key in ("elmo", "elmo_output")}
    place = next((key for key, x in sections.items() if x and x["@architectures"] == LISTENER), "")
    listener = tok2vec_config[place] if place else tok2vec_config
    settings = {
        key: value
        for key, value in listener.items()
        if key not in ("@architectures", "upstream", "width")
    }
    mix = {"@architectures": "spacy_elmo.ElmoMix.v1", **settings, "model": dict(bilm_config)}
    if place:
        _REPLACED.append((tok2vec_config, place, mix))
    return mix
