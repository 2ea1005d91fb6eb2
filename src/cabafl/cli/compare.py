"""`cabafl compare` and `cabafl ablate`"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cabafl.cli.arguments import ExperimentFile, Quiet, Settings, Targets
from cabafl.cli.grid import Jobs, Seeds, run_and_report
from cabafl.cli.watch import Watch, watching
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.config import Experiment, MethodSection

MethodSettings = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings for all methods (section.key=value) or for one (fedasync.alpha=0.5).",
        metavar="[KEY=VALUE]...",
    ),
]
MethodNames = Annotated[str, typer.Option(help="Method names separated by commas, or paper, or all.")]


def compare(
    file: ExperimentFile = None,
    settings: MethodSettings = None,
    methods: MethodNames = "paper",
    seeds: Seeds = 1,
    jobs: Jobs = "auto",
    targets: Targets = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and report; an interrupted comparison continues.")] = Path(
        "comparison"
    ),
    watch: Watch = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same experiment and report on them. Finished runs are not repeated."""
    base, variants = read_comparison(file, settings, methods)
    with watching(watch, [out]):
        _run_and_report(base, variants, seeds, jobs, targets, out, quiet)


def read_comparison(
    file: Path | None, settings: list[str] | None, methods: str
) -> tuple["Experiment", dict[str, dict[str, Any]]]:
    """The experiment that all methods share, and the keys of each method."""
    from cabafl.cli.run import read_experiment
    from cabafl.comparison.variants import method_variants
    from cabafl.config import Experiment

    words = [*([str(file)] if file is not None else []), *(settings or [])]
    sections = {*Experiment.model_fields}
    overrides = [word for word in words if "=" in word and _section(word) not in sections]
    shared = [word for word in words if word not in overrides]
    base = read_experiment(None, shared)
    variants = method_variants(methods, base, overrides, _method_in_file(shared))
    idle = [word for word in shared if _section(word) == "method"]
    if idle and base.method.name not in [keys["name"] for keys in variants.values()]:
        raise UserError(
            f"{idle[0]}: is for method.name = {base.method.name}, which is not compared; accepted: NAME.key=value for "
            f"one of {', '.join(variants)}, or {base.method.name} in --methods"
        )
    return base, variants


def ablate(
    file: ExperimentFile = None,
    settings: Settings = None,
    seeds: Seeds = 1,
    jobs: Jobs = "auto",
    targets: Targets = None,
    out: Annotated[Path, typer.Option(help="Folder for runs and report; an interrupted study continues.")] = Path(
        "ablation"
    ),
    quiet: Quiet = False,
) -> None:
    """Compare CaBaFL with its ablation variants conf1 to conf5 and hard-labels."""
    from cabafl.cli.run import read_experiment
    from cabafl.comparison.variants import ablation_variants

    words = [*([str(file)] if file is not None else []), *(settings or [])]
    base = read_experiment(None, words)
    if base.method.name not in ("cabafl", _method_in_file(words).name):
        raise UserError(f"method.name = {base.method.name!r}: the study varies CaBaFL; accepted: cabafl")
    _run_and_report(base, ablation_variants(base), seeds, jobs, targets, out, quiet)


def _section(word: str) -> str:
    """The first part of ``section.key=value``; empty for a file."""
    key, equals, _ = word.partition("=")
    return key.strip().split(".")[0] if equals else ""


def _method_in_file(words: Sequence[str]) -> "MethodSection":
    """The method and its keys without those of the command line."""
    from cabafl.cli.run import read_experiment

    return read_experiment(None, [word for word in words if _section(word) != "method"]).method


def _run_and_report(
    base: "Experiment",
    variants: Mapping[str, Mapping[str, Any]],
    seeds: int,
    jobs: str,
    targets: str | None,
    out: Path,
    quiet: bool,
) -> None:
    from cabafl.assembly import metric_of
    from cabafl.cli.report import parse_targets, write_report
    from cabafl.comparison.grid import GridRun, make_grid

    chosen = parse_targets(targets, metric_of(base))

    def make() -> list[GridRun]:
        return make_grid(base, variants, range(base.seed, base.seed + seeds), out)

    def report(labels: Mapping[Path, str], notes: Sequence[str]) -> None:
        write_report(labels, out, chosen, quiet, notes)

    run_and_report(make, jobs, out, report, quiet)
