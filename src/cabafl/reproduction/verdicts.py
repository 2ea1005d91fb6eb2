"""Does a claim of the paper hold on our runs? Each test counts what it could judge and says so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from cabafl.paper.artefact import Claim, Entry
from cabafl.paper.definitions import method_label, settings
from cabafl.reporting.measures import INFINITE, cost_to
from cabafl.reporting.runs import Run
from cabafl.reproduction.values import MeasuredArtefact, Place, better

WORDS = {True: "holds", False: "does not hold", None: "not judged"}


@dataclass(frozen=True)
class Verdict:
    """``holds`` is None if our runs do not allow a judgement."""

    text: str
    paper: str
    ours: str
    holds: bool | None

    def line(self) -> str:
        """The claim, the judgement and the numbers behind it."""
        return f"{self.text}: {WORDS[self.holds]}. Ours: {self.ours}. The paper: {self.paper}."


Judged = tuple[bool | None, str]


def judge(claim: Claim, measured: MeasuredArtefact) -> Verdict:
    """Applies the claim's test. Runs at smoke scale are no evidence: their numbers are shown, but not judged."""
    holds, ours = TESTS[claim.test](claim, measured)
    return Verdict(claim.text, claim.paper, ours, None if measured.table.scale == "smoke" else holds)


def _numbers(measured: MeasuredArtefact) -> dict[Place, float]:
    """Values of finished runs; a target that is not reached counts as infinite."""
    missing = INFINITE if measured.table.artefact.kind == "transfers" else None
    found = {place: missing if value.mean is None else value.mean for place, value in measured.values.items()}
    return {place: number for place, number in found.items() if number is not None}


def _ids(axis: Sequence[Entry] | str) -> list[str]:
    """All rows or columns that the paper has, whatever part of them was asked for."""
    return settings().methods if isinstance(axis, str) else [entry.id for entry in axis]


def _groups(claim: Claim, measured: MeasuredArtefact) -> tuple[list[dict[str, float]], int]:
    """The values among which ``claim.of`` must be the best, and how many there are in a group without gaps.

    One group per row, or per column if ``of`` is a row. Methods that the paper does not have are left out.
    """
    artefact, numbers = measured.table.artefact, _numbers(measured)
    rows, columns = _ids(artefact.rows), _ids(artefact.columns)
    if claim.of in columns:
        chosen = [row for row in rows if claim.row in ("", row)]
        return [{name: numbers[row, name] for name in columns if (row, name) in numbers} for row in chosen], len(
            columns
        )
    return [{name: numbers[name, column] for name in rows if (name, column) in numbers} for column in columns], len(
        rows
    )


def _extreme(claim: Claim, measured: MeasuredArtefact) -> Judged:
    """``of`` is the best of each group. A group with gaps can refute this, but not confirm it."""
    groups, size = _groups(claim, measured)
    compared = [group for group in groups if claim.of in group and len(group) > 1]
    if not compared:
        return None, "no runs to compare yet"
    choose = better(measured.table.artefact.kind)
    ahead = [group for group in compared if INFINITE != group[claim.of] == choose(list(group.values()))]
    confirmed = sum(len(group) == size for group in ahead)
    partial = sum(len(group) < size for group in compared)
    notes = f", {partial} of these with gaps" if partial else ""
    unseen = f"; {len(groups) - len(compared)} more have no runs" if len(compared) < len(groups) else ""
    ours = f"in {len(ahead)} of {len(compared)}{notes}{unseen}"
    if len(compared) - len(ahead) > (1 - claim.share) * len(groups):
        return False, ours
    return confirmed >= claim.share * len(groups) or None, ours


def _rows(measured: MeasuredArtefact) -> set[str]:
    return {row.id for row in measured.table.rows}


def _best_is(claim: Claim, measured: MeasuredArtefact) -> Judged:
    """``of`` is the best column of one row."""
    groups, size = _groups(claim, measured)
    for group in groups:
        if len(group) > 1 and claim.of in group:
            best = max(group, key=lambda name: (group[name], name == claim.of))
            ahead = f", by {group[best] - group[claim.of]:.2f} points over {claim.of}" if best != claim.of else ""
            gaps = f", {size - len(group)} have no runs" if len(group) < size else ""
            return (None if gaps else True) if best == claim.of else False, f"best: {best}{ahead}{gaps}"
    return None, "no runs to compare yet"


def _interior(_: Claim, measured: MeasuredArtefact) -> Judged:
    """In every row the best column is neither the first nor the last."""
    artefact, numbers = measured.table.artefact, _numbers(measured)
    rows, columns = _ids(artefact.rows), _ids(artefact.columns)
    best = []
    for row in rows:
        here = {column: numbers[row, column] for column in columns if (row, column) in numbers}
        if len(here) == len(columns):
            best.append(max(here, key=lambda name: here[name]))
    if not best:
        return None, "no complete row yet"
    missing = f"; {len(rows) - len(best)} more without all runs" if len(best) < len(rows) else ""
    inside = all(name not in (columns[0], columns[-1]) for name in best)
    return (None if missing else True) if inside else False, f"best: {', '.join(best)}{missing}"


def _margin(claim: Claim, measured: MeasuredArtefact) -> Judged:
    """How many points ``of`` is ahead of ``over``, in the claim's row and at most."""
    numbers = _numbers(measured)
    margins = {
        row.id: numbers[row.id, claim.of] - numbers[row.id, claim.over]
        for row in measured.table.rows
        if (row.id, claim.of) in numbers and (row.id, claim.over) in numbers
    }
    if not margins:
        return None, "no runs to compare yet"
    widest = max(margins, key=lambda name: margins[name])
    most = f"at most {margins[widest]:.2f} points ({widest})"
    if claim.row not in margins:
        return None, f"no runs of {claim.row} yet; {most}"
    return margins[claim.row] > 0, f"{margins[claim.row]:.2f} points; {most}"


def _speedup(claim: Claim, measured: MeasuredArtefact) -> Judged:
    """Whether ``of`` reaches the target sooner than ``over``. The factor is to the highest target that both reach."""
    own, other = (measured.runs.get((claim.row, name)) for name in (claim.of, claim.over))
    if not own or not other:
        return None, "no runs to compare yet"
    assert claim.target is not None
    first, second = _times(own, claim.target), _times(other, claim.target)
    sooner = None if first == second == INFINITE else first < second
    target = claim.target
    while target > 0:
        times = _times(own, target), _times(other, target)
        if INFINITE not in times and times[0] > 0:
            lower = "" if target == claim.target else f", not {claim.target:g} %, which not both reach"
            return sooner, f"{times[1] / times[0]:.2f} times to {target:g} %{lower}"
        target -= 5
    return sooner, "no target that both reach"


def _times(runs: Sequence[Run], target: float) -> float:
    return fmean(cost_to(run.metrics, "time", target) for run in runs)


def _stabler(claim: Claim, measured: MeasuredArtefact) -> Judged:
    """The stability of ``of`` in ``row`` is lower than in the row ``over``, or than that of the column ``over``."""
    other = (claim.over, claim.of) if claim.over in _rows(measured) else (claim.row, claim.over)
    found = []
    for place in ((claim.row, claim.of), other):
        known = [r.summary["stability"] for r in measured.runs.get(place, ()) if r.summary["stability"] is not None]
        if not known:
            return None, "no runs to compare yet"
        found.append(100 * fmean(known))
    return found[0] < found[1], f"standard deviation of the moving mean {found[0]:.2f} against {found[1]:.2f} points"


def _fair(claim: Claim, measured: MeasuredArtefact) -> Judged:
    row = measured.table.rows[0].id
    values = [measured.values.get((row, name)) for name in (claim.of, claim.over)]
    known = [value.mean for value in values if value is not None and value.mean is not None]
    if len(known) < 2:
        return None, "no runs to compare yet"
    return known[0] <= known[1], f"{known[0]:.1e} against {known[1]:.1e} ({method_label(claim.over)})"


TESTS: dict[str, Callable[[Claim, MeasuredArtefact], Judged]] = {
    "highest": _extreme,
    "lowest": _extreme,
    "best": _best_is,
    "interior": _interior,
    "margin": _margin,
    "speedup": _speedup,
    "stabler": _stabler,
    "fair": _fair,
}
