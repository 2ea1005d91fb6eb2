"""All runs and fleets below the folders that are watched."""

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cabafl.deployment.folder.layout import SETTINGS
from cabafl.recording.folder import EVENTS, EXPERIMENT
from cabafl.watch.locks import Locks
from cabafl.watch.places import Place
from cabafl.watch.standing import WatchedFleet
from cabafl.watch.watched import WatchedRun

LOOK_INTERVAL = 1.0  # seconds between two looks at the runs
READ_SECONDS = 2.0  # of reading event logs, between two looks
YIELD = 0.001  # seconds between two pieces of an event log, in which a request gets the run's lock
QUIET_LOOK_INTERVAL = 10.0  # ... at runs that do not go on
LOOKED_AT = 60.0  # seconds during which somebody who has asked for a run is still looking at it
SEARCH_INTERVAL = 5.0  # seconds between two searches for new folders
SEARCH_SHARE = 0.05  # ... or longer, so that searching takes at most this share of the time
MOST_FOLDERS = 20_000  # that one search enters
DEEPEST = 12  # levels below a root
SKIPPED = frozenset(("journal", "devices", "revoked", "node_modules", "__pycache__"))
INDEX_BYTES = 120 << 20  # of all event logs together; the ones looked at longest ago are given up


class Shelf:
    """Keeps what is known of each run, in one thread that follows them all."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [Place(path) for path in dict.fromkeys(root.resolve() for root in roots)]
        self.runs: dict[str, WatchedRun] = {}
        self.fleets: dict[str, WatchedFleet] = {}
        self.truncated = False  # there are more folders than are searched
        self.locks = Locks()
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._search_after = 0.0
        self._thread = threading.Thread(target=self._follow, name="shelf", daemon=True)

    def start(self) -> None:
        """Searches once, then follows in a thread."""
        self.look()
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def open(self, run: WatchedRun) -> None:
        """Somebody looks at a run: its event log is read next."""
        run.asked = time.monotonic()
        if run.behind:
            self._wake.set()

    def look(self) -> None:
        """One look at everything but event logs."""
        if time.monotonic() >= self._search_after:
            began = time.monotonic()
            self._search()
            took = time.monotonic() - began
            self._search_after = began + max(SEARCH_INTERVAL, took / SEARCH_SHARE)
        self.locks.look()
        for run in list(self.runs.values()):
            self._look_at(run)
        for fleet in list(self.fleets.values()):
            if fleet.place.exists():
                fleet.follow(self.locks)
            else:
                self.fleets.pop(fleet.id, None)

    def _look_at(self, run: WatchedRun) -> None:
        """Runs that do not go on, and at which nobody looks, are looked at less often."""
        now = time.monotonic()
        if now < run.next_look and now - run.asked > LOOKED_AT:
            return
        if not run.place.exists():
            self.runs.pop(run.id, None)
            return
        try:
            run.follow(self.locks)
        except Exception as error:  # one run that cannot be shown is no reason to show no other
            run.give_up(error)
        over = run.state in ("finished", "failed")
        run.next_look = now + (QUIET_LOOK_INTERVAL if over else 0.0)

    def read_events(self) -> None:
        """Reads the event logs of runs that go on, or that somebody looks at, those first."""
        done: set[str] = set()
        until = time.monotonic() + READ_SECONDS
        while not self._ended.is_set():
            waiting = [run for run in list(self.runs.values()) if run.behind and self._wanted(run)]
            waiting = [run for run in waiting if run.id not in done]
            if not waiting:
                break
            run = max(waiting, key=lambda run: run.asked)
            try:
                more = run.read_events()
            except Exception as error:
                run.give_up(error)
                more = False
            if not more:
                done.add(run.id)
            elif time.monotonic() > until:
                self._wake.set()  # the rest comes after a look at the others
                break
            time.sleep(YIELD)
        self._give_up_some()

    def _wanted(self, run: WatchedRun) -> bool:
        return run.state in ("running", "stalled") or run.asked > float("-inf")

    def _give_up_some(self) -> None:
        total = sum(run.index.nbytes for run in list(self.runs.values()))
        for run in sorted(self.runs.values(), key=lambda run: run.asked)[:-1]:
            if total <= INDEX_BYTES:
                return
            if run.index.events and run.state not in ("running", "stalled"):
                total -= run.index.nbytes
                run.asked = float("-inf")
                run.forget_events()

    def _follow(self) -> None:
        while not self._ended.is_set():
            self._wake.wait(LOOK_INTERVAL)
            self._wake.clear()
            if not self._ended.is_set():
                self.look()
                self.read_events()

    def _search(self) -> None:
        self.truncated = False
        for root in self.roots:
            for place, names in self._folders(root):
                if names.issuperset((EXPERIMENT, EVENTS)) and place.id not in self.runs:
                    self.runs[place.id] = WatchedRun(place)
                if SETTINGS in names and place.id not in self.fleets:
                    self.fleets[place.id] = WatchedFleet(place)

    def _folders(self, root: Place) -> Iterator[tuple[Place, set[str]]]:
        """A root and the folders below it, with their files. Does not enter run folders, nor hidden ones."""
        waiting, entered = [root], 0
        while waiting:
            place = waiting.pop()
            entered += 1
            if entered > MOST_FOLDERS:
                self.truncated = True
                return
            found = place.names()
            files = {name for name, folder in found if not folder}
            yield place, files
            if files.issuperset((EXPERIMENT, EVENTS)) or len(place.parts) >= DEEPEST:
                continue
            inner = [name for name, folder in found if folder and name[:1] != "." and name not in SKIPPED]
            waiting += [place.below(name) for name in reversed(inner)]

    def search_fleets(self) -> list[Place]:
        """The fleet folders there are now."""
        if not self.fleets:
            self._search()
        return [fleet.place for fleet in self.fleets.values()]

    def fleet_of(self, run: WatchedRun) -> WatchedFleet | None:
        """The fleet whose server last worked on a run."""
        path = str(run.place.path)
        return next((fleet for fleet in list(self.fleets.values()) if fleet.run_path == path), None)

    def run_of(self, fleet: WatchedFleet) -> WatchedRun | None:
        """The run that a fleet's server last worked on, if it is watched."""
        return next((run for run in list(self.runs.values()) if str(run.place.path) == fleet.run_path), None)
