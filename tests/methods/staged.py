"""Methods with interchangeable slots whose first dispatches are staged: the global model and its version as given."""

from typing import Any

from cabafl.methods.base import Server, Weights
from cabafl.methods.slots import SlotMethod


def staged(cls: type[SlotMethod], parameters: Any, sends: list[tuple[Weights, int]]) -> Any:
    """The method ``cls``, which sends these models, each once the global model has this version. Models are published
    without an upload to reach it."""

    class Staged(cls):  # type: ignore[misc, valid-type]
        name = cls.name

        def send(self, server: Server, device: int) -> None:
            """The next of the staged models, then the newest."""
            if sends:
                self.model, version = sends.pop(0)
                while server.version < version:
                    server.publish(self.model)
            super().send(server, device)

    return Staged(parameters)
