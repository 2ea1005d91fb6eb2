"""The log: time, level and device on every line; what repeats is counted; no device can forge or flood it."""

import io
import json
import logging
from datetime import datetime

from cabafl.deployment.log import MOST_COMPLAINTS, REPEAT_AFTER, Log, LogHandler, printable


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_line_of_text_has_time_level_and_device() -> None:
    file = io.StringIO()
    log = Log(file=file)
    log.info("joins", 3, samples=10)
    log.warn("no upload")
    first, second = file.getvalue().splitlines()
    stamp, rest = first.split(" ", 1)
    assert datetime.fromisoformat(stamp).tzinfo is not None
    assert rest == "info    device 3: joins samples=10"
    assert second.endswith(" warning no upload")


def test_a_line_of_json() -> None:
    file = io.StringIO()
    Log("json", file).warn("lost", 3, seconds=1.5, why=ValueError("x"))
    entry = json.loads(file.getvalue())
    assert datetime.fromisoformat(entry.pop("time"))
    assert entry == {"level": "warning", "device": 3, "text": "lost", "seconds": 1.5, "why": "x"}


def test_what_repeats_is_written_once_and_counted() -> None:
    file, clock = io.StringIO(), Clock()
    log = Log("json", file, clock)
    for _ in range(5):
        log.warn("lost", 3)
        log.warn("lost", 4)
        clock.now += 1
    assert len(file.getvalue().splitlines()) == 2
    clock.now += REPEAT_AFTER
    log.warn("lost", 3)
    entry = json.loads(file.getvalue().splitlines()[-1])
    assert (entry["device"], entry["repeated"]) == (3, 4)
    for _ in range(3):
        log.info("joins", 3)
    assert len(file.getvalue().splitlines()) == 6, "what is no complaint is always written"


def test_one_device_cannot_fill_the_log() -> None:
    file, clock = io.StringIO(), Clock()
    log = Log("text", file, clock)
    for number in range(1000):
        log.warn(f"nonsense {number}", 3)
    lines = file.getvalue().splitlines()
    assert len(lines) == MOST_COMPLAINTS + 1
    assert lines[-1].endswith("device 3: more complaints about it are left out for some minutes")
    log.warn("nonsense", 4)
    log.warn("nonsense")
    assert len(file.getvalue().splitlines()) == MOST_COMPLAINTS + 3
    clock.now += REPEAT_AFTER
    log.warn("nonsense 1001", 3)
    assert file.getvalue().endswith("nonsense 1001\n")


def test_memory_does_not_grow_with_the_complaints() -> None:
    log = Log(file=io.StringIO(), clock=Clock())
    for number in range(25_000):
        log.warn(f"of the server {number}")
    assert len(log._complaints) <= 10_001


def test_texts_cannot_forge_lines_or_speak_to_the_terminal() -> None:
    file = io.StringIO()
    Log(file=file).warn("a\nb\r\x1b[2J\u2028\ud800 [red] Ünï", 3)
    assert file.getvalue().endswith("warning device 3: a b  [2J   [red] Ünï\n")
    assert printable("a\tb\x00") == "a b "


def test_a_closed_pipe_does_not_end_a_run() -> None:
    file = io.StringIO()
    log = Log(file=file)
    file.close()
    log.info("joins", 3)


def test_what_modules_log_is_passed_on() -> None:
    file = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(LogHandler(Log("json", file)))
    logger.info("ready: %s", "mlp")
    logger.warning("hot")
    logger.warning("hot")
    logger.debug("detail")
    levels = [json.loads(line)["level"] for line in file.getvalue().splitlines()]
    assert levels == ["info", "warning"]
