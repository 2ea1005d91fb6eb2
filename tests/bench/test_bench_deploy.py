"""The benchmarks of real devices run with tiny sizes; the soak finds what it looks for."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paho.mqtt", reason="needs paho-mqtt: pip install 'cabafl[deploy]'")
pytest.importorskip("cryptography", reason="needs cryptography: pip install 'cabafl[deploy]'")

from cabafl.bench import deploy, soak
from cabafl.bench.soak import Soak, read_record
from cabafl.deployment.broker import find_mosquitto

needs_mosquitto = pytest.mark.skipif(
    find_mosquitto() is None, reason="needs Mosquitto 2 (Debian: apt-get install mosquitto)"
)


@needs_mosquitto
def test_all_parts_without_flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy, "flower_environment", lambda home: {"PATH": str(tmp_path)})
    monkeypatch.setattr(deploy, "SIZES", (40_000, 1_000_000))
    monkeypatch.setattr(deploy, "BUSY_DEVICES", 8)
    monkeypatch.setattr(deploy, "IN_FLIGHT", 4)
    throughput, idle = deploy.throughput, deploy.idle
    monkeypatch.setattr(deploy, "throughput", lambda times: throughput(20))
    monkeypatch.setattr(deploy, "idle", lambda devices, seconds: idle(8, 1.0))
    section = deploy.measure(quick=True, times=2)
    assert section.figures.keys() == {deploy.MQTT, "busy", "idle"}
    assert section.figures[deploy.MQTT].keys() == {"40000", "1000000"}
    assert section.figures["busy"]["dispatches per second"] > 1
    assert section.figures["idle"]["devices"] == 8
    [check] = section.checks
    assert 0 < check.value < 10
    assert "s per dispatch beyond training" in section.markdown()


def written(path: Path, *events: dict[str, Any]) -> Path:
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_the_record_of_a_soak_is_followed_job_by_job(tmp_path: Path) -> None:
    def event(time: float, kind: str, job: int, **more: Any) -> dict[str, Any]:
        return {"time": time, "event": kind, "job": job, **more}

    found = read_record(
        written(
            tmp_path,
            *(event(job, "dispatch", job) for job in range(4)),
            event(5.0, "answer", 0, seconds=4.0),
            event(5.0, "upload", 0),
            event(6.0, "loss", 1, reason="left"),
            event(7.0, "answer", 0, seconds=4.0),
            event(7.0, "upload", 0),
            event(690.0, "dispatch", 4),
            event(700.0, "dispatch", 5),
        )
    )
    assert (found.uploads, found.twice, found.silent, found.open) == (2, 1, 2, 2)
    assert found.losses == {"left": 1}
    assert found.overheads == [1.0, 3.0]


@needs_mosquitto
@pytest.mark.deploy
def test_a_short_soak_with_its_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "SAMPLE_INTERVAL", 0.5)
    monkeypatch.setattr(soak, "LIGHT_SECONDS", 0.5)
    section = Soak(tmp_path / "soak", devices=12, minutes=0.6, model="small", method="cabafl", slots=6).run()
    assert all(check.met for check in section.checks)
    assert section.figures["uploads"] > 20
    assert section.figures["jobs counted twice"] == 0
    assert section.figures["jobs lost without a word"] == 0
    assert section.figures["jobs in flight at the end"] <= 6
    done = [note.partition(":")[0] for note in section.notes]
    assert done[:5] == ["victims", "server", "broker", "3 devices return", "server"]
    assert section.markdown()
