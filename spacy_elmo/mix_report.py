"""What the components of a pipeline have learned of ELMo's layers: as a table, a plot, a log."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

from spacy.language import Language
from spacy.util import registry
from thinc.api import Model
from wasabi.tables import table

from .learned_mix import get_mix
from .listener import LISTENER_NAME, MIX_NAME

LogStep: TypeAlias = Callable[[dict[str, Any] | None], None]
SetUpLogger: TypeAlias = Callable[[Language, IO[str], IO[str]], tuple[LogStep, Callable[[], None]]]


class MixOfComponent(NamedTuple):
    """A mix and its place.

    Attributes:
        component: Name of the component.
        position: `"input"` or `"output"` of its encoder.
        shares: Of each layer in the sum, the word vectors first.
        gamma: Factor of the sum.
    """

    component: str
    position: str
    shares: list[float]
    gamma: float


def collect_mixes(nlp: Language) -> list[MixOfComponent]:
    """Find the mixes of all components, in the order of the pipeline, inputs first."""
    mixes = []
    for name, component in nlp.components:
        model = getattr(component, "model", None)
        for node in model.walk() if isinstance(model, Model) else ():
            if node.name in (LISTENER_NAME, MIX_NAME) and node.has_param("mix"):
                shares, gamma = get_mix(node)
                position = node.attrs["position"]
                mixes.append(MixOfComponent(name, position, [float(x) for x in shares], gamma))
    order = {name: number for number, name in enumerate(nlp.component_names)}
    return sorted(mixes, key=lambda mix: (order[mix.component], mix.position))


def name_layers(num_layers: int) -> list[str]:
    """Name the layers of a biLM from the word vectors up."""
    return ["words", *(f"LSTM {number}" for number in range(1, num_layers))]


def draw_table(mixes: Sequence[MixOfComponent]) -> str:
    """Lay out mixes as a table of text."""
    names = name_layers(max((len(mix.shares) for mix in mixes), default=0))
    rows = [
        (mix.component, mix.position, *(f"{x:.3f}" for x in mix.shares), f"{mix.gamma:.3f}")
        for mix in mixes
    ]
    header = ("component", "position", *names, "gamma")
    return str(table(rows, header=header, divider=True, aligns=["l", "l", *"r" * len(names), "r"]))


def plot_mixes(mixes: Sequence[MixOfComponent], path: Path) -> None:
    """Draw the shares of layers by component and position, as figure 2 of Peters et al. 2018.

    Args:
        mixes: At least one.
        path: File to write; its suffix tells the format, such as `.png` or `.svg`.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install matplotlib.") from error
    names = name_layers(max(len(mix.shares) for mix in mixes))
    figure = Figure(figsize=(1.5 + 0.9 * len(mixes), 1.5 + 0.6 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    columns = [mix.shares + [float("nan")] * (len(names) - len(mix.shares)) for mix in mixes]
    image = axes.imshow(list(zip(*columns, strict=True)), vmin=0, vmax=1, cmap="viridis")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()  # the top layer on top
    labels = [f"{mix.component}\n{mix.position}" for mix in mixes]
    axes.set_xticks(range(len(mixes)), labels)
    for column, mix in enumerate(mixes):
        for row, share in enumerate(mix.shares):
            colour = "black" if share > 0.6 else "white"
            axes.text(column, row, f"{share:.2f}", ha="center", va="center", color=colour)
    figure.colorbar(image, label="softmax(w)")
    figure.savefig(path)


@registry.loggers("spacy_elmo.MixLogger.v1")
def make_mix_logger(logger: SetUpLogger) -> SetUpLogger:
    """Let a logger of `spacy train` show the mixes whenever it shows scores.

    They come as lines on the console, and among the scores, where loggers such as those of Weights
    & Biases or MLflow find them.

    Args:
        logger: Another logger, such as `spacy.ConsoleLogger.v1`.
    """

    def set_up(
        nlp: Language, stdout: IO[str], stderr: IO[str]
    ) -> tuple[LogStep, Callable[[], None]]:
        log_inner, finish = logger(nlp, stdout, stderr)

        def log(info: dict[str, Any] | None) -> None:
            mixes = collect_mixes(nlp) if info is not None else []
            if info is not None and info.get("other_scores") is not None:
                info["other_scores"].update(_name_numbers(mixes))
            log_inner(info)
            for mix in mixes:
                shares = " ".join(f"{share:.3f}" for share in mix.shares)
                stdout.write(
                    f"ELMo at {mix.component} {mix.position}: {shares}, gamma {mix.gamma:.3f}\n"
                )

        return log, finish

    return set_up


def _name_numbers(mixes: Sequence[MixOfComponent]) -> dict[str, float]:
    """Name each share and gamma as a score, such as `tagger_input_elmo_0`."""
    return {
        f"{mix.component}_{mix.position}_elmo_{name}": value
        for mix in mixes
        for name, value in [*enumerate(mix.shares), ("gamma", mix.gamma)]
    }
