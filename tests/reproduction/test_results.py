"""Every kind of artefact on made-up runs: tables, figures, captions, verdicts, files and the page."""

import csv
import io
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cabafl.comparison.observe import SplitSimilarities
from cabafl.errors import UserError
from cabafl.files import as_json, write_atomic
from cabafl.paper.definitions import artefacts, layout, narrowed, settings
from cabafl.reproduction import similarities, verdicts
from cabafl.reproduction.claims import cache_update_seconds, claims_result
from cabafl.reproduction.figures import panel_title
from cabafl.reproduction.page import index_page
from cabafl.reproduction.plan import RUNS
from cabafl.reproduction.pool import RunPool
from cabafl.reproduction.result import ArtefactResult, build, read_results, write_result
from cabafl.reproduction.similarities import judge_similarities, observation_path
from tests.reproduction.made_up import Final, write_artefact, write_experiment


def made(out: Path, name: str, final: Final, scale: str = "desk", seeds: int = 1) -> ArtefactResult:
    table = write_artefact(out, name, final, scale, seeds)
    return build(table, RunPool([out / RUNS]), out, {})


def texts(result: ArtefactResult, which: str) -> list[list[str]]:
    """The cells of all rows called "ours" or "paper"."""
    found = []
    for row in result.table.rows:
        place = next((i for i, cell in enumerate(row) if cell.text.startswith(which)), None)
        if place is not None:
            found.append([cell.text for cell in row[place + 1 :]])
    return found


def favourite(row: str, column: str) -> float:
    return 0.9 if "cabafl" in (row, column) else 0.5


def test_a_pivot_has_the_papers_rows_and_columns_and_values(tmp_path: Path) -> None:
    result = made(tmp_path, "table6", lambda row, column: favourite(row, column) + 0.01 * int(column[-1]))
    assert result.table.headings == ["", "", "Config1", "Config2", "Config3", "Config4"]
    assert texts(result, "ours")[-1] == ["91.00 ± 0.00", "92.00 ± 0.00", "93.00 ± 0.00", "94.00 ± 0.00"]
    assert texts(result, "paper")[0] == ["44.91 ± 2.63", "44.78 ± 2.57", "45.45 ± 2.83", "45.32 ± 2.99"]
    best = [[cell.best for cell in row[2:]] for row in result.table.rows]
    assert best == [[False] * 4] * 12 + [[True] * 4] * 2
    assert result.verdicts[0].holds is True
    assert "in 4 of 4" in result.verdicts[0].ours


def test_rows_are_split_into_the_parts_that_vary(tmp_path: Path) -> None:
    result = build(layout(artefacts()["table1"], "smoke"), RunPool([]), tmp_path, {})
    assert result.table.headings[:4] == ["data", "network", "setting", ""]
    assert [cell.text for cell in result.table.rows[8][:4]] == ["CIFAR-10", "CNN", "β = 0.1", "ours"]
    assert result.gaps == result.cells == 189
    assert result.verdicts[0].holds is None


def test_gaps_are_marked_and_counted(tmp_path: Path) -> None:
    result = made(tmp_path, "table9", lambda row, column: None if column == "0.7" else 0.5)
    assert texts(result, "ours")[0] == ["50.00 ± 0.00", "…", "50.00 ± 0.00", "50.00 ± 0.00"]
    assert result.gaps == 2
    assert "2 of 8 cells have no finished run (…)." in result.caption


def test_the_spread_over_seeds_has_its_own_row(tmp_path: Path) -> None:
    result = made(tmp_path, "table3", lambda row, column: 0.5, seeds=2)
    assert [row[1].text for row in result.table.rows] == ["ours", "without trend", "± over seeds", "paper"]
    accuracy = made(tmp_path, "table9", lambda row, column: 0.5, seeds=2)
    spread = [cell.text for cell in accuracy.table.rows[1][2:]]
    assert spread == ["1.41 (2)"] * 4  # 50 and 52 %


def test_transfers_to_a_target(tmp_path: Path) -> None:
    result = made(tmp_path, "table2", lambda row, column: 0.3 if column == "safa" else favourite(row, column))
    ours = texts(result, "ours")[0]  # 35 %: evaluations add 19 transfers each
    assert ours[4] == "NA"
    assert int(ours[6]) < int(ours[0])
    assert [row[1].text for row in result.table.rows[:2]] == ["ours, to 35 %", "paper, to 40 %"]
    assert texts(result, "paper")[3] == ["7,860", "NA", "11,060", "11,040", "NA", "3,380", "2,259"]
    assert result.verdicts[0].holds is True


def test_claims_that_do_not_hold(tmp_path: Path) -> None:
    def worst(row: str, column: str) -> float:
        return 0.2 if "cabafl" in (row, column) else 0.5

    highest = made(tmp_path / "a", "table8", worst).verdicts[0]
    assert (highest.holds, highest.ours) == (False, "in 0 of 4")
    assert "does not hold" in highest.line()


def test_a_claim_about_all_rows_needs_all_of_them(tmp_path: Path) -> None:
    """One row that is lost refutes it; rows that are won confirm nothing while others are missing."""
    won = made(tmp_path / "a", "table8", lambda row, column: favourite(row, column) if "iid" in column else None)
    assert (won.verdicts[0].holds, won.verdicts[0].ours) == (None, "in 1 of 1; 3 more have no runs")
    lost = made(
        tmp_path / "b", "table8", lambda row, column: None if "iid" not in column else 0.5 + 0.1 * (row != "cabafl")
    )
    assert (lost.verdicts[0].holds, lost.verdicts[0].ours) == (False, "in 0 of 1; 3 more have no runs")


def test_a_row_that_is_won_against_a_part_of_the_methods_confirms_nothing(tmp_path: Path) -> None:
    table = write_artefact(tmp_path, "table3", favourite, "desk")
    pool = RunPool([tmp_path / RUNS])
    for chosen in (["cabafl", "fedavg"], ["cabafl", "fedbuff"]):
        few = layout(table.artefact, "desk", chosen)
        assert build(few, pool, tmp_path, {}).verdicts[0].holds is not True


def test_methods_that_the_paper_does_not_have_refute_nothing(tmp_path: Path) -> None:
    write_artefact(tmp_path, "table7", favourite, "desk")
    table = layout(artefacts()["table7"], "desk", [*settings().methods, "fedbuff"])
    for cell in table.cells:
        if cell.experiment.method.name == "fedbuff":
            write_experiment(tmp_path / RUNS / f"fedbuff{cell.row}", cell.experiment, 0.99)
    result = build(table, RunPool([tmp_path / RUNS]), tmp_path, {})
    assert result.gaps == 0
    assert (result.verdicts[0].holds, result.verdicts[0].ours) == (True, "in 2 of 2")


def test_rows_that_were_not_asked_for_are_missing_too(tmp_path: Path) -> None:
    table = write_artefact(tmp_path, "table8", favourite, "desk")
    result = build(narrowed(table, "beta0.5"), RunPool([tmp_path / RUNS]), tmp_path, {})
    assert (result.verdicts[0].holds, result.verdicts[0].ours) == (None, "in 1 of 1; 3 more have no runs")


def test_the_best_value_needs_all_values(tmp_path: Path) -> None:
    gaps = made(tmp_path / "a", "table11", lambda row, column: {"0.4": 0.5, "0.3": 0.6}.get(column))
    assert [verdict.holds for verdict in gaps.verdicts] == [None, None]
    assert gaps.verdicts[0].ours == "best: 0.3, 2 have no runs"
    panels = made(tmp_path / "b", "fig9", lambda row, m: 0.5 + 0.1 * (m == "m20") if "iid" in row else None)
    assert (panels.verdicts[0].holds, panels.verdicts[0].ours) == (None, "best: m20; 1 more without all runs")


@pytest.mark.parametrize(("own", "other", "holds"), [(0.9, 0.5, True), (0.5, 0.9, False), (0.43, 0.42, None)])
def test_who_reaches_the_target_sooner(tmp_path: Path, own: float, other: float, holds: bool | None) -> None:
    """A run that never reaches it is the later one; if neither does, nothing is known about this target."""
    verdict = made(tmp_path, "fig5", lambda row, column: other if column == "safa" else own).verdicts[0]
    assert verdict.holds is holds
    assert "9.26" not in verdict.text  # the number is the paper's; ours stands beside it


def test_nothing_is_judged_at_smoke_scale(tmp_path: Path) -> None:
    verdict = made(tmp_path, "table8", favourite, "smoke").verdicts[0]
    assert (verdict.holds, verdict.ours) == (None, "in 4 of 4")


def test_the_best_value_of_a_study(tmp_path: Path) -> None:
    order = {"0.4": 0.5, "0.3": 0.6, "0.2": 0.7, "0.01": 0.8}
    result = made(tmp_path, "table11", lambda row, column: order[column])
    assert [verdict.holds for verdict in result.verdicts] == [False, True]
    assert result.verdicts[0].ours == "best: 0.01, by 20.00 points over 0.3"


@pytest.mark.parametrize(("best", "holds"), [("k20", True), ("k30", False)])
def test_an_optimum_inside(tmp_path: Path, best: str, holds: bool) -> None:
    result = made(tmp_path, "fig8", lambda row, column: 0.8 if column == best else 0.5)
    assert result.verdicts[0].holds is holds
    assert result.figure is not None


def test_speedup_lowers_the_target_to_what_both_reach(tmp_path: Path) -> None:
    result = made(tmp_path, "fig5", lambda row, column: 0.43 if column == "safa" else 0.86)
    assert "to 40 %, not 45 %, which not both reach" in result.verdicts[0].ours
    assert result.verdicts[0].holds is True


def test_margin_needs_the_papers_row(tmp_path: Path) -> None:
    table = write_artefact(tmp_path, "table1", favourite, "desk")
    result = build(table, RunPool([tmp_path / RUNS]), tmp_path, {})
    assert result.verdicts[1].ours.startswith("40.00 points")


@pytest.mark.parametrize("name", ["fig6", "fig7", "fig9", "fig10", "fig11", "fig13", "fig15"])
def test_figures_are_drawn(tmp_path: Path, name: str) -> None:
    result = made(tmp_path, name, favourite)
    assert result.figure is not None
    assert result.figure.png.startswith(b"\x89PNG")
    assert result.gaps == 0
    assert result.caption[-2].startswith("One seed") or result.caption[-1].startswith("One seed")


def test_a_figure_with_gaps_is_drawn_too(tmp_path: Path) -> None:
    result = made(tmp_path, "fig9", lambda row, column: 0.5 if "iid" in row else None)
    assert result.figure is not None
    assert result.gaps == 5


def test_captions_name_every_difference_from_the_paper(tmp_path: Path) -> None:
    desk = " ".join(build(layout(artefacts()["fig8"], "desk"), RunPool([]), tmp_path, {}).caption)
    assert "network: CNN (paper: ResNet-18)" in desk
    assert "virtual seconds: 1,500 (scale paper: 19,000)" in desk
    paper = build(layout(artefacts()["fig8"], "paper"), RunPool([]), tmp_path, {}).caption
    assert "Scale paper." in paper
    width = " ".join(build(layout(artefacts()["table1"], "desk"), RunPool([]), tmp_path, {}).caption)
    assert "width of the network: 0.25 (paper: 1)" in width
    simulated = " ".join(build(layout(artefacts()["fig13"], "desk"), RunPool([]), tmp_path, {}).caption)
    assert "Simulated: no real board took part." in simulated


@pytest.mark.parametrize("name", ["table4", "table5", "fig12"])
def test_facts(tmp_path: Path, name: str) -> None:
    result = build(layout(artefacts()[name], "desk"), RunPool([]), tmp_path, {})
    assert result.gaps == 0
    assert all(verdict.holds for verdict in result.verdicts)
    if name != "fig12":
        ours, paper = ([row[1:] for row in result.table.rows[i::2]] for i in (0, 1))
        assert ours == paper


def split(name: str, parts: list[float], unions: list[float]) -> SplitSimilarities:
    return SplitSimilarities(name, np.array([parts]), np.array([unions]))


def test_similarities(tmp_path: Path) -> None:
    artefact = artefacts()["fig2"]
    splits = [split(f"beta = {b}", [1.0, *[b] * 5], [b, 0.9, 0.9, 0.9, 1.0]) for b in (0.1, 0.5, 0.8)]
    content = [{"name": s.name, "parts": s.parts.tolist(), "unions": s.unions.tolist()} for s in splits]
    path = observation_path(artefact, "desk", tmp_path / RUNS, {})
    path.parent.mkdir()
    assert build(layout(artefact, "desk"), RunPool([]), tmp_path, {}).gaps == 1
    write_atomic(path, as_json({"splits": content}))
    result = build(layout(artefact, "desk"), RunPool([]), tmp_path, {})
    assert [verdict.holds for verdict in result.verdicts] == [True, True, True]
    assert result.figure is not None
    assert len(result.table.rows) == 3
    path.write_text('{"splits": [')
    with pytest.raises(UserError, match="remove the file to measure it again"):
        build(layout(artefact, "desk"), RunPool([]), tmp_path, {})
    reversed_order = [judge_similarities(claim, splits[::-1], "desk").holds for claim in artefact.claims]
    assert reversed_order == [True, False, True]


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"splits": [{"name": "x"}]}', '{"splits": [{"name": "x", "parts": [[1]], "unions": [[1]]}]}'],
)
def test_damaged_similarities_are_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "observe.json").write_text(content)
    with pytest.raises(UserError, match=r"observe\.json: cannot be read"):
        similarities.load_similarities(tmp_path / "observe.json")


def test_files_and_page(tmp_path: Path) -> None:
    for name in ("fig8", "table9"):
        result = made(tmp_path, name, favourite, "smoke")
        write_result(result, tmp_path / name)
    assert sorted(path.name for path in (tmp_path / "fig8").iterdir()) == [
        "figure.png",
        "figure.svg",
        "result.json",
        "table.csv",
        "table.md",
        "table.tex",
    ]
    rows = list(csv.reader(io.StringIO((tmp_path / "table9" / "table.csv").read_text())))
    assert rows[0] == ["setting", "", "α = 0.5", "α = 0.7", "α = 0.9", "α = 1"]
    assert "At smoke scale the numbers say nothing about the paper" in (tmp_path / "table9" / "table.md").read_text()
    page = index_page(read_results(tmp_path, list(artefacts())))
    assert 'href="#table9"' in page
    assert page.count("<figure>") == 1
    assert "http" not in page.replace("http-equiv", "")


def test_a_figure_of_an_earlier_call_does_not_stay(tmp_path: Path) -> None:
    """The same folder at another scale, of which no run is finished."""
    write_result(made(tmp_path, "fig8", favourite, "smoke"), tmp_path / "fig8")
    write_result(build(layout(artefacts()["fig8"], "desk"), RunPool([]), tmp_path, {}), tmp_path / "fig8")
    assert not list((tmp_path / "fig8").glob("figure.*"))
    assert read_results(tmp_path, ["fig8"])[0].figure is None


def test_panels_name_the_data_where_they_differ() -> None:
    rows = layout(artefacts()["fig11"], "paper").rows
    assert [panel_title(row, rows) for row in rows] == ["CIFAR-10, β = 0.1", "CIFAR-10, IID", "CIFAR-100, special"]
    rows = layout(artefacts()["fig5"], "paper").rows
    assert panel_title(rows[3], rows) == "IID"


def test_a_damaged_result_is_left_out_of_the_page(tmp_path: Path) -> None:
    write_result(made(tmp_path, "table9", favourite), tmp_path / "table9")
    (tmp_path / "table9" / "result.json").write_text("{")
    assert read_results(tmp_path, list(artefacts())) == []


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX")
def test_latex_compiles(tmp_path: Path) -> None:
    write_result(made(tmp_path, "table9", favourite), tmp_path / "table9")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    subprocess.run(command, cwd=tmp_path / "table9", check=True, capture_output=True)


def test_claims_are_collected(tmp_path: Path) -> None:
    results = [made(tmp_path, name, favourite) for name in ("table8", "fig15")]
    found = claims_result(results, "desk")
    assert [row[0].text for row in found.table.rows] == ["Section VI-B", "Table VIII", "Figure 15"]
    assert found.table.rows[1][-1].text == "holds"
    assert 0 < cache_update_seconds(3) < 1


@pytest.mark.parametrize("name", list(artefacts()))
def test_claims_name_rows_columns_and_tests_that_exist(name: str) -> None:
    table = layout(artefacts()[name], "paper")
    rows, columns = ({entry.id for entry in axis} for axis in (table.rows, table.columns))
    for claim in table.artefact.claims:
        assert claim.test in (similarities.TESTS if table.artefact.observe else verdicts.TESTS)
        assert {claim.of, claim.over} <= {*rows, *columns, ""}
        assert claim.row in {*rows, ""}
