"""Writes checkpoints while the run goes on."""

import threading
import time
from typing import Any

from cabafl.engine.checkpoint import Checkpoint, Snapshot, take_snapshot, write_snapshot
from cabafl.engine.tensors import Abandoned
from cabafl.files import cannot_record
from cabafl.recording.folder import EXPERIMENT, RunFolder


class Saver:
    """One thread at a time that writes one checkpoint. All methods are called by the run's own thread."""

    def __init__(self, folder: RunFolder) -> None:
        self.seconds = 0.0  # what the last checkpoint took, taking its state included
        self._folder = folder
        self._state: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._abandoned = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint was begun that `wait` has not ended yet."""
        return self._thread is not None

    @property
    def written(self) -> bool:
        """Whether `wait` would return at once."""
        return self._thread is not None and not self._thread.is_alive()

    def begin(self, checkpoint: Checkpoint, began: float) -> None:
        """Keeps a state as it is now and starts to write it. ``began``: when the work on this checkpoint started, on
        the performance counter."""
        snapshot = take_snapshot(checkpoint)
        self._state, self._error = checkpoint.engine, None
        self._thread = threading.Thread(target=self._write, args=(snapshot, began), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> dict[str, Any]:
        """Waits for the thread; returns the state that is on disk now. Raises `RunStopped` if it cannot be written."""
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        if isinstance(self._error, OSError):
            raise cannot_record(self._error, self._folder.path) from self._error
        if self._error is not None:
            raise self._error
        state, self._state = self._state, {}
        return state

    def abandon(self) -> None:
        """Ends a checkpoint that is being written, after its next piece, without a result."""
        if self._thread is not None:
            self._abandoned.set()
            self._thread.join()
            self._thread = None

    def _write(self, snapshot: Snapshot, began: float) -> None:
        path = self._folder.path
        try:
            self._folder.sync()  # first: the checkpoint counts on the record up to its positions
            experiment = (path / EXPERIMENT).read_text(encoding="utf-8")
            write_snapshot(path, snapshot, experiment, self._abandoned.is_set)
        except Abandoned:
            pass
        except Exception as error:  # raised by `wait`
            self._error = error
        self.seconds = time.perf_counter() - began
