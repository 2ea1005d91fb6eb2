"""`cabafl reproduce`"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from cabafl.cli.arguments import Quiet
from cabafl.cli.console import console, print_notice, print_table
from cabafl.cli.grid import GridProgress, Jobs, parse_jobs
from cabafl.errors import UserError

if TYPE_CHECKING:
    from cabafl.comparison.grid import GridRun
    from cabafl.paper.artefact import Artefact
    from cabafl.reporting.table import Table
    from cabafl.reproduction.result import ArtefactResult
    from cabafl.reproduction.work import Reproduction

LIST, ALL, CLAIMS = "list", "all", "claims"


Names = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="list, all, claims, or tables and figures: table1, fig8, ...")
]
ScaleOption = Annotated[
    str, typer.Option(help="smoke: minutes, to see that it works | desk: hours on two cores | paper: a GPU's work.")
]
Seeds = Annotated[int, typer.Option(help="Number of seeds, counting up from 1.", min=1)]
Methods = Annotated[str, typer.Option(help="Where methods are compared: names separated by commas, or paper, or all.")]
Only = Annotated[str | None, typer.Option(help="Only rows or columns whose name contains this text, e.g. cifar10-cnn.")]
Data = Annotated[
    list[str] | None,
    typer.Option(help="Where a data set is: NAME=PATH; an .npz file takes its place. May be repeated."),
]
Part = Annotated[str, typer.Option(help="Make only this share of the runs, e.g. 1/2 here and 2/2 elsewhere.")]
Runs = Annotated[
    list[Path] | None, typer.Option(help="Folder with finished runs that need not be repeated; may be repeated.")
]
DeviceOption = Annotated[str, typer.Option(help="Where networks are computed: cpu | cuda | cuda:1.")]
MakeRuns = Annotated[bool, typer.Option("--run/--no-run", help="--no-run: only write what is finished.")]
Out = Annotated[Path | None, typer.Option(help="Folder for runs and results; default: reproduction-<scale>.")]


def reproduce(
    names: Names,
    scale: ScaleOption = "smoke",
    seeds: Seeds = 1,
    methods: Methods = "paper",
    only: Only = None,
    data: Data = None,
    part: Part = "1/1",
    runs: Runs = None,
    make_runs: MakeRuns = True,
    device: DeviceOption = "cpu",
    jobs: Jobs = "auto",
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Reproduce tables and figures of the CaBaFL paper, with the paper's values beside ours.

    Runs are shared between tables and figures. The same command continues an interrupted reproduction.
    """
    from cabafl.paper.definitions import SCALES
    from cabafl.reproduction.plan import Request
    from cabafl.reproduction.work import Reproduction
    from cabafl.validation import unknown

    if scale not in SCALES:
        raise unknown("--scale", scale, SCALES)
    if names == [LIST]:
        _list()
        return
    chosen = _artefacts(names)
    folder, roots = out or Path(f"reproduction-{scale}"), _roots(data or [])
    request = Request(chosen, scale, folder, seeds, _methods(methods), only, roots, _part(part), _device(device))
    work = Reproduction(request, runs or [])
    if not quiet and not {ALL, CLAIMS} & set(names):
        for name in work.without_rows():
            print_notice("left out", f"{name}: --only = {only!r} matches no row or column of it")
    _check_data(work, strict=make_runs and not {ALL, CLAIMS} & set(names), quiet=quiet or names == [CLAIMS])
    _carry_out(work, names, make_runs and names != [CLAIMS], parse_jobs(jobs), quiet)


def _artefacts(names: Sequence[str]) -> "list[Artefact]":
    from cabafl.paper.definitions import artefacts, find_artefact

    alone = [name for name in names if name in (LIST, ALL, CLAIMS)]
    if alone and len(names) > 1:
        raise UserError(f"NAME = {' '.join(names)!r}: accepted: {alone[0]} alone, or tables and figures")
    if alone:
        return list(artefacts().values())
    return list({found.name: found for found in map(find_artefact, names)}.values())


def _methods(names: str) -> list[str]:
    from cabafl.checked import make_method
    from cabafl.comparison.variants import method_variants
    from cabafl.config import Experiment, MethodSection

    found = [str(keys["name"]) for keys in method_variants(names, Experiment(), []).values()]
    for name in found:
        make_method(Experiment(method=MethodSection(name=name)))  # the user's own may be missing or wrong
    return found


def _roots(given: Sequence[str]) -> dict[str, str]:
    from cabafl.paper.definitions import settings
    from cabafl.validation import unknown

    roots = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise UserError(f"--data = {text!r}: accepted: NAME=PATH, e.g. shakespeare=roles.json.gz")
        if name not in settings().data:
            raise unknown("--data", name, settings().data)
        if not Path(path).expanduser().exists():
            raise UserError(f"--data = {text!r}: there is no such file or folder")
        roots[name] = str(Path(path).expanduser().resolve())
    return roots


def _part(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"--part = {text!r}: accepted: which part and how many, from 1/1, e.g. 1/2")
    return int(match[1]), int(match[2])


def _device(name: str) -> str:
    from cabafl.assembly import check_processor
    from cabafl.config import RunSection
    from cabafl.validation import validated

    device = validated(RunSection, {"device": name}, "run").device
    check_processor(device)
    return device


def _check_data(work: "Reproduction", strict: bool, quiet: bool) -> None:
    from cabafl.reproduction.plan import how_to_get

    missing = work.missing_data()
    if not missing:
        return
    there = work.data_that_are_there()
    for name, artefacts in missing.items():
        text = f"{', '.join(artefacts)} at {work.request.scale} scale: data set {name} is missing; {how_to_get(name)}"
        text += f", or name it with --data {name}=PATH"
        if strict:
            rest = f"; without it: --only {there[0]}-" if there else ""
            raise UserError(text + rest)
        if not quiet:
            print_notice("left out", text)


def _carry_out(work: "Reproduction", names: Sequence[str], make_runs: bool, cores: int, quiet: bool) -> None:
    from cabafl.comparison.grid import locked, run_grid

    failed = []
    with locked(work.request.out):
        if make_runs:
            missing, planned = work.runs(work.pool())
            if not quiet:
                _announce(missing, planned, work.request.scale)
            for folder in work.outdated:
                print_notice("not used", f"{folder}: made by a version that counts other costs")
            with GridProgress(missing, enabled=not quiet) as progress:
                try:
                    run_grid(missing, cores, progress.update)
                except KeyboardInterrupt:
                    console.print("Stopped. Run the same command again to continue.")
                    raise typer.Exit(130) from None
            failed = [run for run in missing if run.failure is not None]
            for run in failed:
                print_notice("failed", f"{run.label}, seed {run.seed}: {run.failure}")
        work.observe(lambda text: None if quiet else console.print(text), measure=make_runs)
        results = work.results()
        if CLAIMS in names or ALL in names:
            from cabafl.reproduction.claims import claims_result

            results.insert(0, claims_result(results, work.request.scale))
        page = work.write([results[0]] if names == [CLAIMS] else results)
    if not quiet:
        for result in results[:1] if names == [CLAIMS] else results:
            _show(result)
        console.print(f"All files: {work.request.out}; page: {page}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


def _announce(missing: "Sequence[GridRun]", planned: int, scale: str) -> None:
    from cabafl.reproduction.estimate import Stopwatch, facts_of, in_words

    text = f"{planned} runs, {planned - len(missing)} of them finished or left out."
    if missing and scale != "smoke":
        experiments = [run.experiment for run in missing]
        facts = [facts_of(run.experiment, run.label) for run in missing]
        text += f" The rest takes about {in_words(Stopwatch().seconds(experiments, facts))} of processor time."
    console.print(text, soft_wrap=True)


def _show(result: "ArtefactResult") -> None:
    if result.name == CLAIMS:
        for row in result.table.rows:
            where, claim, paper, ours, word = (cell.text for cell in row)
            text = Text.assemble(f"{where}: {claim}: ", (word, "bold"), f". Ours: {ours}. The paper: {paper}.")
            console.print(text, soft_wrap=True)
    else:
        print_table(_terminal(result.table))
    for line in result.notes:
        console.print(f"* {line}", soft_wrap=True)
    console.print()


def _terminal(table: "Table") -> RichTable:
    """On a narrow terminal the deviations are left out, which the files have, and the first columns are one."""
    lines = [table.headings, *([cell.text for cell in row] for row in table.rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(table.headings))]
    narrow = sum(width + 3 for width in widths) > console.width
    stubs = table.headings.index("") + 1 if narrow and "" in table.headings[1:] else 0
    shown = RichTable(title=table.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    shown.collapse_padding = True
    if stubs:
        shown.add_column("")
    for place, heading in list(enumerate(table.headings))[stubs:]:
        number = any(line[place][:1].isdigit() for line in lines[1:])
        shown.add_column(Text(heading), justify="right" if number else "left", no_wrap=number)
    for row in table.rows:
        first = [Text(", ".join(cell.text for cell in row[:stubs] if cell.text))] if stubs else []
        texts = [cell.text.partition(" ± ")[0] if narrow else cell.text for cell in row]
        cells = [Text(f"{text} *", "bold green") if c.best else Text(text) for text, c in zip(texts, row, strict=True)]
        shown.add_row(*first, *cells[stubs:])
    return shown


def _list() -> None:
    from cabafl.paper.definitions import SCALES, artefacts, layout, settings
    from cabafl.reproduction.estimate import Stopwatch, facts_of, in_words
    from cabafl.reproduction.plan import folder_name

    watch = Stopwatch()
    table = RichTable(title="Tables and figures of the CaBaFL paper: number of runs and processor time here, about")
    for heading in ("name", "what it shows", *SCALES):
        table.add_column(heading)
    everything: dict[str, dict[str, float]] = {scale: {} for scale in SCALES}
    for artefact in artefacts().values():
        texts = []
        for scale in SCALES:
            runs = {folder_name(cell.experiment): cell for cell in layout(artefact, scale).cells}
            for name, cell in runs.items():
                if name not in everything[scale]:
                    seconds = watch.seconds([cell.experiment], [facts_of(cell.experiment, cell.setting)])
                    everything[scale][name] = seconds
            texts.append(f"{len(runs)}: {in_words(sum(everything[scale][name] for name in runs))}" if runs else "-")
        table.add_row(artefact.name, f"{artefact.number}: {artefact.title}", *texts)
    totals = [f"{len(runs)}: {in_words(sum(runs.values()))}" for runs in everything.values()]
    table.add_row("all", "everything; runs that several need are made once", *totals)
    print_table(table)
    for scale in SCALES:
        console.print(f"{scale}: {next(s.about for name, s in settings().scale.items() if name == scale)}")
