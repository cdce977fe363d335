"""Make the tables and figures of Peters et al. 2018 within a time limit; run again to continue.

python examples/paper/all.py DATA RESULTS --vectors vectors.bin --hours 8 --page docs/paper.md

The order of the runs is: Table 1, entailment and roles (Tables 2, 3 and 7), longer training, the
learning curves (Figure 1), and questions. Tables 4, 5 and 6 take only minutes, so they are made
first.
"""

import math
import re
import time
from pathlib import Path
from typing import Annotated

import figure_1
import figure_2
import table_1
import table_2
import table_3
import table_4
import table_5
import table_6
import table_7
import table_epochs
import typer
from runs import DataFolder, Hours, Jobs, Model, Options, Results, Run, Settings, Vectors, make_runs

from hf_elmo.bundled import BUNDLED_NAME

PROBES = (table_4, table_5, table_6)
TABLES = (table_1, table_epochs, table_2, table_3, *PROBES, table_7, figure_1, figure_2)


def list_queue() -> list[Run]:
    """List all runs, each once, in the order in which they are made."""
    grid = [run for table in (table_2, table_3, table_7) for run in table.RUNS]
    by_task = {task: [run for run in grid if run.task == task] for task in table_2.PAPER}
    queue = [*table_1.RUNS, *by_task["entailment"], *by_task["srl"], *table_epochs.RUNS]
    queue += [*figure_1.RUNS, *by_task["squad"], *figure_2.RUNS]
    return list(dict.fromkeys(queue))


def update(page: str, results: Path, figures: Path) -> str:
    """Replace the tables of a page, each between the comments NAME and end; draw the figures."""
    for table in TABLES:
        name, text = table.__name__, table.write(results)
        if hasattr(table, "plot"):
            path = figures / f"paper_{name}.svg"
            table.plot(results, path)
            text += f"\n\n![{table.ALT}](figures/{path.name})" if path.exists() else ""
        block = f"<!-- {name} -->\n{text}\n<!-- end -->"
        pattern = rf"<!-- {name} -->.*?<!-- end -->"
        page = re.sub(pattern, lambda _, block=block: block, page, flags=re.DOTALL)
    return page


def main(
    data: DataFolder,
    results: Results,
    vectors: Vectors,
    model: Model = BUNDLED_NAME,
    hours: Hours = math.inf,
    jobs: Jobs = 1,
    option: Options = None,
    page: Annotated[Path | None, typer.Option(help="Page whose tables are replaced.")] = None,
    only_list: Annotated[bool, typer.Option("--list", help="List missing runs only.")] = False,
) -> None:
    """Make the missing runs and tables, and update the page."""
    deadline = time.monotonic() + 3600 * hours
    settings = Settings(data, results, vectors, model, deadline, option or (), jobs)
    queue = list_queue()
    missing = [run for run in queue if not (run.find_folder(results) / "result.json").exists()]
    print(f"{len(queue) - len(missing)} of {len(queue)} runs are complete.")
    if only_list:
        print("\n".join(str(run.find_folder(results).relative_to(results)) for run in missing))
        return
    for probe in PROBES:
        probe.make(settings)
    make_runs(missing, settings)
    if page is not None:
        figures = page.parent / "figures"
        figures.mkdir(exist_ok=True)
        page.write_text(update(page.read_text("utf-8"), results, figures), "utf-8")


if __name__ == "__main__":
    typer.run(main)
