"""Report the learned mixes of a pipeline as a table, a plot or lines of a training log."""

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
    """A learned mix, with its component and position.

    Attributes:
        component: Name of the component.
        position: `"input"` or `"output"` of the component's encoder.
        shares: Weight of each layer in the sum, the word vectors first.
        gamma: Factor of the weighted sum.
    """

    component: str
    position: str
    shares: list[float]
    gamma: float


def collect_mixes(nlp: Language) -> list[MixOfComponent]:
    """Find the mixes of all components, in the order of the pipeline, inputs before outputs."""
    mixes = []
    for name, component in nlp.components:
        model = getattr(component, "model", None)
        nodes = model.walk() if isinstance(model, Model) else ()
        learned = [
            (node.attrs["position"], get_mix(node))
            for node in nodes
            if node.name in (LISTENER_NAME, MIX_NAME) and node.has_param("mix")
        ]
        for position, (shares, gamma) in sorted(learned, key=lambda mix: mix[0]):
            mixes.append(MixOfComponent(name, position, [float(x) for x in shares], gamma))
    return mixes


def name_layers(mixes: Sequence[MixOfComponent]) -> list[str]:
    """Return names for the layers of the biLM with the most layers, the word vectors first."""
    num_layers = max((len(mix.shares) for mix in mixes), default=1)
    return ["words", *(f"LSTM {number}" for number in range(1, num_layers))]


def draw_table(mixes: Sequence[MixOfComponent]) -> str:
    """Format mixes as a text table."""
    names = name_layers(mixes)
    rows = [
        (mix.component, mix.position, *(f"{x:.3f}" for x in mix.shares), f"{mix.gamma:.3f}")
        for mix in mixes
    ]
    header = ("component", "position", *names, "gamma")
    return str(table(rows, header=header, divider=True, aligns=["l", "l", *"r" * len(names), "r"]))


def plot_mixes(mixes: Sequence[MixOfComponent], path: Path) -> None:
    """Plot the shares of layers by component and position, like figure 2 of Peters et al. 2018.

    Args:
        mixes: At least one.
        path: File to write; its suffix selects the format, such as `.png` or `.svg`.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install matplotlib.") from error
    from hf_elmo.files.output_file import replace  # slow to import

    names = name_layers(mixes)
    figure = Figure(figsize=(1.5 + 0.9 * len(mixes), 1.5 + 0.6 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    columns = [mix.shares + [float("nan")] * (len(names) - len(mix.shares)) for mix in mixes]
    image = axes.imshow(
        list(zip(*columns, strict=True)), vmin=0, vmax=1, cmap="viridis", origin="lower"
    )
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(len(mixes)), [f"{mix.component}\n{mix.position}" for mix in mixes])
    for column, mix in enumerate(mixes):
        for row, share in enumerate(mix.shares):
            colour = "black" if share > 0.6 else "white"
            axes.text(column, row, f"{share:.2f}", ha="center", va="center", color=colour)
    figure.colorbar(image, label="softmax(w)")
    with replace(path.resolve()) as temporary:  # a symbolic link is kept
        figure.savefig(temporary, format=path.suffix.removeprefix(".") or "png")


@registry.loggers("spacy_elmo.MixLogger.v1")
def make_mix_logger(logger: SetUpLogger) -> SetUpLogger:
    """Make a logger for `spacy train` that adds the learned mixes to another logger.

    The mixes are printed, and added to the scores, so that loggers such as those of Weights &
    Biases or MLflow find them.

    Args:
        logger: Another logger, such as `spacy.ConsoleLogger.v1`.
    """

    def set_up(
        nlp: Language, stdout: IO[str], stderr: IO[str]
    ) -> tuple[LogStep, Callable[[], None]]:
        log_inner, finish = logger(nlp, stdout, stderr)

        def log(info: dict[str, Any] | None) -> None:
            mixes = [] if info is None else collect_mixes(nlp)
            if info is not None and info.get("other_scores") is not None:
                info["other_scores"].update(
                    (f"{mix.component}_{mix.position}_elmo_{name}", value)
                    for mix in mixes
                    for name, value in [*enumerate(mix.shares), ("gamma", mix.gamma)]
                )
            log_inner(info)
            for mix in mixes:
                shares = " ".join(f"{share:.3f}" for share in mix.shares)
                stdout.write(
                    f"ELMo at {mix.component} {mix.position}: {shares}, gamma {mix.gamma:.3f}\n"
                )

        return log, finish

    return set_up
