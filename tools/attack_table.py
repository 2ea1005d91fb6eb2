"""How well methods stand attacks, with and without defences, as one Markdown table: docs/robustness.md.

Every cell is a simulation in a folder of its own. Finished ones are not repeated, interrupted ones go on.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import get_args

from cabafl.comparison.grid import GridRun, check_folder, locked, run_grid
from cabafl.config import load_experiment
from cabafl.errors import UserError
from cabafl.names import AttackName
from cabafl.recording.folder import SUMMARY

KINDS: tuple[str, ...] = get_args(AttackName)
DEFENCE = "update_clip=2,feature_clip=3,sample_quantile=0.5"


@dataclass(frozen=True)
class Row:
    """One line of the table: what the attackers do and how many of them there are."""

    attack: str | None
    share: float

    @property
    def name(self) -> str:
        """The start of its folders' names; without a dot, after which a name would count as its suffix."""
        return "honest" if self.attack is None else f"{self.attack}-{1000 * self.share:.0f}"

    def words(self) -> list[str]:
        """Its settings."""
        if self.attack is None:
            return []
        return [f"fleet.faults.attack={self.attack}", f"fleet.faults.attack_share={self.share!r}"]


@dataclass
class Table:
    """The runs of every cell."""

    rows: list[Row]
    methods: list[str]
    runs: dict[tuple[Row, str, bool], list[GridRun]] = field(default_factory=dict)

    def all(self) -> list[GridRun]:
        """The runs, row by row."""
        return [run for cell in self.runs.values() for run in cell]

    def lines(self) -> Iterator[str]:
        """Markdown: best-window accuracy in percent; of several seeds the mean ± the standard deviation over them."""
        heads = [f"{method}{', defended' if defended else ''}" for method in self.methods for defended in (False, True)]
        yield f"| attack | share | {' | '.join(heads)} |"
        yield "|---" * (2 + len(heads)) + "|"
        for row in self.rows:
            cells = [self._cell(row, method, defended) for method in self.methods for defended in (False, True)]
            yield f"| {row.attack or 'none'} | {100 * row.share:g} % | {' | '.join(cells)} |"

    def _cell(self, row: Row, method: str, defended: bool) -> str:
        runs = self.runs[row, method, defended]
        if any(run.failure for run in runs):
            return "failed"
        if not all(run.done for run in runs):
            return "–"
        summaries = [json.loads((run.folder / SUMMARY).read_text(encoding="utf-8")) for run in runs]
        means = [summary["best_window_mean"] for summary in summaries]
        if None in means:
            return "–"
        spread = f" ± {100 * stdev(means):.1f}" if len(means) > 1 else ""
        return f"{100 * fmean(means):.1f}{spread}"


def make_table(given: argparse.Namespace) -> Table:
    """All cells with their runs; raises `UserError` for a wrong setting or a folder with something else in it."""
    shares = [float(share) for share in given.shares.split(",")]
    rows = [Row(None, 0.0)] if 0.0 in shares else []
    rows += [Row(attack, share) for attack in given.attacks.split(",") for share in shares if share > 0]
    table = Table(rows, given.methods.split(","))
    defence = [f"run.defence.{setting}" for setting in given.defence.split(",")]
    for row in rows:
        for method in table.methods:
            for defended, seeds in ((False, given.seeds), (True, given.defended_seeds or given.seeds)):
                words = [f"method.name={method}", f"run.virtual_time={given.seconds!r}", *row.words()]
                words += [*(defence if defended else []), *given.settings]
                label = f"{row.name}-{method}{'-defended' if defended else ''}"
                table.runs[row, method, defended] = [
                    GridRun(
                        label,
                        seed,
                        load_experiment(None, [*words, f"seed={seed}"]),
                        given.out / "runs" / f"{label}-seed{seed}",
                    )
                    for seed in range(1, seeds + 1)
                ]
    for run in table.all():
        check_folder(run)
    return table


def carry_out(given: argparse.Namespace) -> int:
    """Runs what is missing and writes the table, also after every finished run; the exit code."""
    with locked(given.out):
        table = make_table(given)
        written = -1

        def poll(runs: Sequence[GridRun]) -> None:
            nonlocal written
            done = sum(run.done for run in runs)
            if done != written:
                written = done
                (given.out / "table.md").write_text("\n".join([*table.lines(), ""]), encoding="utf-8")
                sys.stdout.write(f"{done} of {len(runs)} runs\n")
                sys.stdout.flush()

        try:
            run_grid(table.all(), given.jobs, poll)
        except KeyboardInterrupt:
            sys.stdout.write("stopped; run the same command again to continue\n")
            return 130
        written = -1
        poll(table.all())
        sys.stdout.write((given.out / "table.md").read_text(encoding="utf-8"))
        failed = [run for run in table.all() if run.failure is not None]
        for run in failed:
            sys.stderr.write(f"failed: {run.label}, seed {run.seed}: {run.failure}\n")
        return 1 if failed else 0


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", help="section.key=value, for every run")
    parser.add_argument("--out", type=Path, default=Path("attacks"))
    parser.add_argument("--seconds", type=float, default=1200.0, help="virtual seconds of a run; 200 or more")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--defended-seeds", type=int, help="seeds of the defended columns; default: --seeds")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--methods", default="cabafl,fedbuff,fedavg")
    parser.add_argument("--attacks", default=",".join(KINDS))
    parser.add_argument("--shares", default="0,0.1,0.3")
    parser.add_argument("--defence", default=DEFENCE, help="keys of [run.defence], separated by commas")
    try:
        return carry_out(parser.parse_args())
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
