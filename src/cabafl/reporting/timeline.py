"""The device timeline: which device trained which model when, and where time was lost waiting."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cabafl.reporting.runs import Run, clock_of
from cabafl.reporting.trace import Beginning, JobSpan, read_beginning

DEVICES = 20
JOB_TIMES = 10  # the window is so many of the longest jobs
FILLS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#882255", "#7F7F7F", "#F0E442")
DARK = {"#0072B2", "#009E73", "#D55E00", "#882255", "#7F7F7F", "#999933"}


def draw_timeline(runs: Mapping[str, Run]) -> tuple[Figure, str]:
    """One panel per method over the same seconds, and a sentence on how to read it."""
    longest = max(run.counts.longest for run in runs.values())
    end = max(run.counts.end for run in runs.values())
    seconds = min(JOB_TIMES * longest, end) or 1.0
    devices = min(DEVICES, 1 + max((max(run.counts.selections, default=0) for run in runs.values()), default=0))
    height = 0.85 + 0.12 * max(devices, 8)
    figure = Figure(figsize=(11, 0.8 + height * len(runs)), layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, run) in zip(panels, runs.items(), strict=True):
        begun = read_beginning(run.events, seconds)
        _draw(axes, begun, devices, seconds)
        axes.set_title(
            f"{label.replace('$', chr(92) + '$')[:60]}: {_busy(begun, seconds)}", fontsize=10, loc="left", pad=10
        )
        axes.set_ylabel("device")
        axes.tick_params(labelbottom=True)
    panels[-1].set_xlabel(f"{clock_of(runs.values())} [s]")
    _explain(figure)
    return figure, (
        f"The first {seconds:,.0f} seconds of the first {devices} devices. A bar is a job; its number and"
        " colour are the slot of the model that travels, or, where all devices get the one global model, its version."
        " White is a device that waits; marks on top are published models."
    )


def _draw(axes: Any, begun: Beginning, devices: int, seconds: float) -> None:
    jobs = [job for job in begun.jobs if job.device < devices]
    number = _numbering(begun.jobs)
    for fill in FILLS:
        _bars(axes, [job for job in jobs if job.lost is None and _fill(number(job)) == fill], fill, "")
    _bars(axes, [job for job in jobs if job.lost is not None], "0.93", "////////")
    for job in jobs:
        text = str(number(job))
        if job.lost is None and job.end - job.start > seconds * (0.004 + 0.005 * len(text)):
            colour = "white" if _fill(number(job)) in DARK else "black"
            place = ((job.start + job.end) / 2, job.device - 0.03)
            axes.text(*place, text, ha="center", va="center", fontsize=6, color=colour, clip_on=True)
    if begun.published:
        axes.plot(begun.published, [-0.9] * len(begun.published), "|", color="black", markersize=4, clip_on=False)
    axes.set(xlim=(0, seconds), ylim=(devices - 0.4, -0.6))
    axes.set_yticks(range(0, devices, 5 if devices > 8 else 1))
    axes.hlines(range(devices), 0, seconds, color="0.9", linewidth=0.6, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)


def _numbering(jobs: Sequence[JobSpan]) -> Callable[[JobSpan], int]:
    """By slot where several models travel; by version where one model is sent to everybody."""
    if len({job.slot for job in jobs}) > 1:
        return lambda job: job.slot
    return lambda job: job.version


def _fill(number: int) -> str:
    return FILLS[number % len(FILLS)]


def _bars(axes: Any, jobs: Sequence[JobSpan], colour: str, hatch: str) -> None:
    """Bars of one look as one object, which keeps large pictures small."""
    corners = [
        [(j.start, j.device - 0.4), (j.end, j.device - 0.4), (j.end, j.device + 0.4), (j.start, j.device + 0.4)]
        for j in jobs
    ]
    edge = "0.35" if hatch else "white"
    axes.add_collection(PolyCollection(corners, facecolors=colour, edgecolors=edge, linewidths=0.4, hatch=hatch))


def _busy(begun: Beginning, seconds: float) -> str:
    """How many devices train on average: what waiting costs."""
    if not begun.jobs:
        return "no jobs"
    total = sum(job.end - job.start for job in begun.jobs)
    return f"{total / seconds:.1f} devices busy on average, {len(begun.published):,} versions"


def _explain(figure: Figure) -> None:
    signs = [
        Patch(facecolor=FILLS[0], label="job, numbered by slot or version of its model"),
        Patch(facecolor="0.93", edgecolor="0.35", hatch="////////", label="lost job"),
    ]
    figure.legend(handles=signs, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
