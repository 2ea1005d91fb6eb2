"""Does a claim of the paper hold on our runs? Each test counts what it could judge and says so."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from cabafl.paper.artefact import Claim
from cabafl.paper.definitions import method_label
from cabafl.reporting.measures import INFINITE, cost_to
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


def _groups(claim: Claim, measured: MeasuredArtefact) -> Iterable[tuple[str, Mapping[str, float]]]:
    """The values among which ``claim.of`` must be the best: one group per row, or per column if it is a row."""
    table, numbers = measured.table, _numbers(measured)
    if claim.of in {column.id for column in table.columns}:
        for row in table.rows:
            if claim.row in ("", row.id):
                yield row.id, {c.id: numbers[row.id, c.id] for c in table.columns if (row.id, c.id) in numbers}
    else:
        for column in table.columns:
            yield column.id, {r.id: numbers[r.id, column.id] for r in table.rows if (r.id, column.id) in numbers}


def _extreme(claim: Claim, measured: MeasuredArtefact) -> Judged:
    """``of`` is the best of each group."""
    wins = judged = partial = 0
    groups = list(_groups(claim, measured))
    size = max(len(measured.table.rows) if claim.of in _rows(measured) else len(measured.table.columns), 1)
    for _, group in groups:
        if claim.of not in group or len(group) < 2:
            continue
        judged += 1
        partial += len(group) < size
        best = better(measured.table.artefact.kind)(list(group.values()))
        wins += group[claim.of] == best and best != INFINITE
    if not judged:
        return None, "no runs to compare yet"
    notes = f", {partial} of these with gaps" if partial else ""
    unseen = f"; {len(groups) - judged} more have no runs" if judged < len(groups) else ""
    return wins >= claim.share * judged, f"in {wins} of {judged}{notes}{unseen}"


def _rows(measured: MeasuredArtefact) -> set[str]:
    return {row.id for row in measured.table.rows}


def _best_is(claim: Claim, measured: MeasuredArtefact) -> Judged:
    """``of`` is the best column of one row."""
    for _, group in _groups(claim, measured):
        if len(group) > 1 and claim.of in group:
            best = max(group, key=lambda name: group[name])
            ahead = f", by {group[best] - group[claim.of]:.2f} points over {claim.of}" if best != claim.of else ""
            return best == claim.of, f"best: {best}{ahead}"
    return None, "no runs to compare yet"


def _interior(_: Claim, measured: MeasuredArtefact) -> Judged:
    """In every row the best column is neither the first nor the last."""
    columns, numbers = [column.id for column in measured.table.columns], _numbers(measured)
    best = []
    for row in measured.table.rows:
        here = {column: numbers[row.id, column] for column in columns if (row.id, column) in numbers}
        if len(here) == len(columns):
            best.append(max(here, key=lambda name: here[name]))
    if not best:
        return None, "no complete row yet"
    return all(name not in (columns[0], columns[-1]) for name in best), f"best: {', '.join(best)}"


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
    """Time of ``over`` to the target divided by that of ``of``; the target is lowered to what both reach."""
    own, other = (measured.runs.get((claim.row, name)) for name in (claim.of, claim.over))
    if not own or not other:
        return None, "no runs to compare yet"
    assert claim.target is not None
    target = claim.target
    while target > 0:
        times = [fmean(cost_to(run.metrics, "time", target) for run in runs) for runs in (own, other)]
        if INFINITE not in times and times[0] > 0:
            lower = "" if target == claim.target else f", not {claim.target:g} %, which not both reach"
            return times[1] / times[0] > 1, f"{times[1] / times[0]:.2f} times to {target:g} %{lower}"
        target -= 5
    return None, "no target that both reach"


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
