"""The device timeline: which device trained which model when, and how long devices waited."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cabafl.reporting.runs import Run, clock_of
from cabafl.reporting.trace import FirstSeconds, JobSpan, read_first_seconds

MAX_DEVICES = 20
LONGEST_JOBS = 10  # the timeline spans this many times the longest job
FILLS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#882255", "#7F7F7F", "#F0E442")
DARK = {"#0072B2", "#009E73", "#D55E00", "#882255", "#7F7F7F", "#999933"}  # with white text


def draw_timeline(runs: Mapping[str, Run]) -> tuple[Figure, str]:
    """Draws one panel per method on the same time axis; returns the figure and its caption."""
    longest = max(run.counts.longest for run in runs.values())
    end = max(run.counts.end for run in runs.values())
    seconds = min(LONGEST_JOBS * longest, end) or 1.0
    devices = min(MAX_DEVICES, 1 + max((max(run.counts.selections, default=0) for run in runs.values()), default=0))
    height = 0.85 + 0.12 * max(devices, 8)
    figure = Figure(figsize=(11, 0.8 + height * len(runs)), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, run) in zip(panels, runs.items(), strict=True):
        first = read_first_seconds(run.events, seconds)
        _draw(axes, first, devices, seconds)
        name = label.replace("$", r"\$")[:60]  # a dollar sign would start a formula
        axes.set_title(f"{name}: {_busy(first, seconds)}", fontsize=10, loc="left", pad=10)
        axes.set_ylabel("device")
        axes.tick_params(labelbottom=True)
    panels[-1].set_xlabel(f"{clock_of(runs.values())} [s]")
    _add_legend(figure)
    return figure, (
        f"The first {seconds:,.0f} seconds of the first {devices} devices. A bar is a job; its number and"
        " colour are the slot of the model, or, if all devices get the same global model, its version."
        " White: the device waits. Marks on top: published models."
    )


def _draw(axes: Any, first: FirstSeconds, devices: int, seconds: float) -> None:
    jobs = [job for job in first.jobs if job.device < devices]
    number = _numbering(first.jobs)
    for fill in FILLS:
        _bars(axes, [job for job in jobs if job.lost is None and _fill(number(job)) == fill], fill, "")
    _bars(axes, [job for job in jobs if job.lost is not None], "0.93", "////////")
    for job in jobs:
        text = str(number(job))
        if job.lost is None and job.end - job.start > seconds * (0.004 + 0.005 * len(text)):
            colour = "white" if _fill(number(job)) in DARK else "black"
            place = ((job.start + job.end) / 2, job.device - 0.03)
            axes.text(*place, text, ha="center", va="center", fontsize=6, color=colour, clip_on=True)
    if first.published:
        axes.plot(first.published, [-0.9] * len(first.published), "|", color="black", markersize=4, clip_on=False)
    axes.set(xlim=(0, seconds), ylim=(devices - 0.4, -0.6))
    axes.set_yticks(range(0, devices, 5 if devices > 8 else 1))
    axes.hlines(range(devices), 0, seconds, color="0.9", linewidth=0.6, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)


def _numbering(jobs: Sequence[JobSpan]) -> Callable[[JobSpan], int]:
    """Jobs are numbered by slot if there are several, otherwise by the version of the global model."""
    if len({job.slot for job in jobs}) > 1:
        return lambda job: job.slot
    return lambda job: job.version


def _fill(number: int) -> str:
    return FILLS[number % len(FILLS)]


def _bars(axes: Any, jobs: Sequence[JobSpan], colour: str, hatch: str) -> None:
    """Draws bars of one colour as a single collection, which keeps the SVG small."""
    corners = [
        [(j.start, j.device - 0.4), (j.end, j.device - 0.4), (j.end, j.device + 0.4), (j.start, j.device + 0.4)]
        for j in jobs
    ]
    edge = "0.35" if hatch else "white"
    axes.add_collection(PolyCollection(corners, facecolors=colour, edgecolors=edge, linewidths=0.4, hatch=hatch))


def _busy(first: FirstSeconds, seconds: float) -> str:
    if not first.jobs:
        return "no jobs"
    total = sum(job.end - job.start for job in first.jobs)
    return f"{total / seconds:.1f} devices busy on average, {len(first.published):,} versions"


def _add_legend(figure: Figure) -> None:
    patches = [
        Patch(facecolor=FILLS[0], label="job, numbered by slot or version of its model"),
        Patch(facecolor="0.93", edgecolor="0.35", hatch="////////", label="lost job"),
    ]
    figure.legend(handles=patches, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
