"""Drives a run on real devices: waits for news, obeys the operator, writes the status and a line of progress."""

import time
from typing import Any

from cabafl.deployment.server.dispatcher import Dispatcher, Quarantined
from cabafl.deployment.server.operator import Command, CommandBox, StatusFile
from cabafl.engine.changes import parse_change
from cabafl.engine.checkpoint import Checkpoint
from cabafl.engine.inputs import Changed, Operated, Passed, Stopping
from cabafl.engine.quarantine import AlarmFailed
from cabafl.errors import UserError
from cabafl.lifecycle.run import Lifecycle
from cabafl.recording.folder import save_model

CHECK_INTERVAL = 0.5  # seconds between two looks at what the operator wants and should see
PROGRESS_INTERVAL = 60.0  # seconds between two lines of progress
QUIET_AFTER = 300.0  # seconds without an upload, at least, before the log says so
QUIET_JOBS = 10.0  # ... and this many median jobs


class FleetDriver:
    """See `lifecycle.run.Driver`."""

    def __init__(self, dispatcher: Dispatcher, run: Lifecycle, status: StatusFile, commands: CommandBox) -> None:
        self.dispatcher = dispatcher
        self.engine = dispatcher.engine
        self.journal = dispatcher.journal
        self.run = run
        self.status = status
        self.commands = commands
        self._checked = False  # the state of the method, once it has one
        self._said = time.monotonic()
        self._looked = self._said - CHECK_INTERVAL

    def carry_out(self, checkpoint: Checkpoint | None) -> dict[str, Any]:
        """Runs to the end and returns the summary. However the run ends, the status file says so."""
        finished = False
        try:
            summary = self.run.carry_out(self, checkpoint)
            finished = True
            self.journal.discard()
        except AlarmFailed as error:
            self.journal.commit()  # the inputs before the alarm
            self.journal.quarantine.add_alarm(error.alarm, str(error))
            raise Quarantined(str(error), None) from error
        finally:
            self.status.write("complete" if finished else "stopped")
        return summary

    def begin(self, state: dict[str, Any] | None) -> None:
        """Restores the checkpoint, replays the inputs journaled after it, and resumes where the journal ends."""
        now = 0.0
        if state is not None:
            self.engine.restore(state)
            self.dispatcher.restore(state["dispatcher"])
            now = self.engine.now
        replayed = 0
        for number, given in self.journal.inputs(0 if state is None else state["journal"]):
            self.dispatcher.replay(number, given)
            now = max(now, given.time)
            replayed += 1
        if self.journal.length:
            self.dispatcher.log.info("continues", seconds=round(now, 1), replayed=replayed)
            self.dispatcher.resume(now)

    def step(self) -> bool:
        """Waits for what happens next; returns False when the run is over."""
        self.run.check_stop()
        if not self._checked and self.engine.started:
            self.engine.check_method()
            self._checked = True
        if self._over():
            return False
        if time.monotonic() - self._looked >= CHECK_INTERVAL:
            self._looked = time.monotonic()
            self._serve_operator()
        self.dispatcher.step(CHECK_INTERVAL)
        return True

    def _over(self) -> bool:
        limit = self.engine.limits.seconds
        if limit is not None and self.dispatcher.now() >= limit:
            self.dispatcher.give(Passed(limit))
        return self.engine.started and self.engine.over

    def state(self) -> dict[str, Any] | None:
        """The engine's state and the number of inputs it includes; None before the run has started."""
        if not self.engine.started:
            return None
        self.journal.cut()
        more = {"journal": self.journal.length, "dispatcher": self.dispatcher.state()}
        return self.engine.state() | more

    def saved(self, state: dict[str, Any]) -> None:
        """A checkpoint on disk includes these inputs: the journal forgets them."""
        self.journal.forget(state["journal"])
        self.dispatcher.log.info("checkpoint", seconds=round(state["now"], 1))

    def end(self) -> None:
        """Sends no more jobs and ends the run when those in flight are back."""
        if self.engine.stopping == "no":
            self.dispatcher.give(Stopping(self.dispatcher.now(), False))

    def wake(self) -> None:
        """Gives up waiting for the network; called by a signal handler."""
        self.dispatcher.carrier.wake()

    # The operator

    def _serve_operator(self) -> None:
        for command in self.commands.take():
            self._obey(command)
        self.status.update()
        self._say_progress()

    def _obey(self, command: Command) -> None:
        """What is accepted is on disk before the operator hears of it."""
        try:
            text = self._carry_out(command)
            self.journal.commit()
        except UserError as error:
            self.commands.answer(command, False, str(error))
        except OSError as error:
            self.commands.answer(command, False, f"{command.kind}: {error}")
        else:
            self.dispatcher.log.info(f"command {command.kind}: {text}")
            self.commands.answer(command, True, text)

    def _carry_out(self, command: Command) -> str:
        now = self.dispatcher.now()
        if command.kind == "export":
            return self._export(command)
        if command.kind == "removed":
            return self._record_removal(command, now)
        if not self.dispatcher.started:
            raise UserError(f"{command.kind}: the run has not started yet; stop the server with Ctrl-C or SIGTERM")
        if command.kind == "stop":
            at_once = bool(command.values.get("at_once"))
            self.dispatcher.give(Stopping(now, at_once))
            return "stops at once" if at_once else f"stops after {len(self.engine.flights)} jobs in flight"
        if command.kind == "set":
            return self._change([str(setting) for setting in command.values.get("settings", ())], now)
        raise UserError(f"{command.kind}: unknown command")

    def _change(self, settings: list[str], now: float) -> str:
        """All of them, or none if one is not accepted."""
        if not settings:
            raise UserError("set: no settings; accepted: KEY=VALUE, e.g. run.wall_time=7200")
        found, changes = [], dict(self.engine.changes)
        for setting in settings:
            change = parse_change(setting, self.run.experiment, changes)
            changes[change.key] = change.value
            found.append(change)
        for change in found:
            self.dispatcher.give(Changed(now, change.key, change.value))
        return ", ".join(f"{change.key} = {change.value}" for change in found)

    def _export(self, command: Command) -> str:
        """Beside the answer, where the server may write; the operator's command moves it."""
        path = self.commands.attachment(command)
        save_model(path, self.run.layout.tensors(self.engine.result))
        if self.dispatcher.started:
            self.dispatcher.give(Operated(self.dispatcher.now(), "export"))
        return f"version {self.engine.version} at {self.dispatcher.now():.0f} s"

    def _record_removal(self, command: Command, now: float) -> str:
        """The device is gone from the fleet folder already."""
        found = command.values.get("devices")
        devices = [each for each in found if isinstance(each, int)] if isinstance(found, list) else []
        if self.dispatcher.started:
            for device in devices:
                self.dispatcher.give(Operated(now, "remove", device))
        return f"removed: {', '.join(map(str, devices)) or 'none'}"

    def _say_progress(self) -> None:
        if time.monotonic() - self._said < PROGRESS_INTERVAL:
            return
        self._said = time.monotonic()
        dispatcher, engine, log = self.dispatcher, self.engine, self.dispatcher.log
        if not dispatcher.started:
            log.info(f"waits for devices: {len(engine.present)} of {dispatcher.enough} have joined")
            return
        last = self.run.rows[-1] if self.run.rows else None
        metric: dict[str, Any] = {} if last is None else {last.metric.name: round(last.value, 4)}
        log.info(
            "progress",
            seconds=round(dispatcher.now()),
            version=engine.version,
            **metric,
            uploads=engine.ledger.uploads,
            lost=sum(engine.ledger.losses.values()),
            in_flight=len(engine.flights),
            online=len(engine.present),
        )
        quiet = dispatcher.since_upload
        if quiet > max(QUIET_AFTER, QUIET_JOBS * (engine.durations.value() or 0.0)):
            log.warn("no upload for a long time; see `cabafl deploy status`", seconds=round(quiet))
