"""The command line: `python -m hf_elmo COMMAND`."""

import sys

import typer
from transformers.utils import logging

from .command_errors import run_app
from .corpus.commands import embed
from .language_model.commands import evaluate, score, substitutes, vocab
from .onnx.commands import export
from .pretraining.commands import pretrain
from .tasks.commands import predict, score_model, train

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def main() -> None:
    """ELMo: contextual word vectors from a character-based biLM."""


COMMANDS = (embed, vocab, pretrain, evaluate, score, substitutes, export)
for command in (*COMMANDS, train, score_model, predict):
    app.command("test" if command is score_model else None)(command)

if __name__ == "__main__":
    if sys.stderr is None or not sys.stderr.isatty():
        logging.disable_progress_bar()  # transformers' progress bar would fill a log
    run_app(app)
