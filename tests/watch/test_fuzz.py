"""Records with anything in them: every address still answers."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.watch.site import Visit

ODD: list[Any] = [-1, 0, 3, 1e308, -1e308, None, "x", [], [1, "y"], {}, True, 2**63, 2**31, 1e-320, "", float("nan")]
VIEWS = ("", "/curves", "/activity", "/events", "/at", "/fleet", "/timeline", "/method", "/device/0")
QUERIES: list[dict[str, Any]] = [{}, {"time": 0}, {"time": 20.5}, {"time": 1e300}]


def mutated(lines: list[str], draw: random.Random) -> list[str]:
    """Some lines with odd values, some twice, some missing, some in the wrong place, some that are none."""
    found = []
    for line in lines:
        event, chance = json.loads(line), draw.random()
        if chance < 0.1:
            event[draw.choice(list(event))] = draw.choice(ODD)
        elif chance < 0.15:
            event.pop(draw.choice(list(event)))
        elif chance < 0.2:
            event[str(draw.choice(ODD))] = draw.choice(ODD)
        elif chance < 0.25:
            continue
        found.append(json.dumps(event))
        if chance > 0.97:
            found.append(draw.choice([line, "{", "", "\x00", line[: len(line) // 2]]))
    for _ in range(20):
        one, other = draw.randrange(len(found)), draw.randrange(len(found))
        found[one], found[other] = found[other], found[one]
    return found


@pytest.mark.parametrize("seed", range(6))
def test_any_record_can_be_looked_at(visited: Visit, run: Path, seed: int) -> None:
    draw = random.Random(seed)
    lines = (run / "events.jsonl").read_text().splitlines()
    (run / "events.jsonl").write_text("\n".join(mutated(lines, draw)) + "\n")
    rows = (run / "metrics.csv").read_text().splitlines()
    for number in range(1, len(rows)):
        cells = rows[number].split(",")
        cells[draw.randrange(len(cells))] = str(draw.choice(ODD))
        rows[number] = ",".join(cells)
    (run / "metrics.csv").write_text("\n".join(rows) + "\n")
    if seed % 2:
        (run / "summary.json").write_text(json.dumps({draw.choice(["losses", "wall_seconds"]): draw.choice(ODD)}))
    visited.of_run()
    for view in VIEWS:
        for query in QUERIES:
            response = visited.client.get(f"/api/runs/{visited.id}{view}", params=query)
            assert response.status_code in (200, 404), (view, query, response.text)
    for query in ({"kind": "cache", "field": "similarity"}, {"kind": "publish", "field": "version", "by": "slot"}):
        assert visited.client.get(f"/api/runs/{visited.id}/series", params=query).status_code in (200, 404)
    assert visited.client.get("/metrics").status_code == 200
    visited.look()
    assert visited.client.get("/api/runs").status_code == 200
