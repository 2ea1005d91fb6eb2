"""A device process that behaves oddly: ``python -m tests.deployment.odd_device FOLDER HOW``.

It joins and reports features like any other device, but answers jobs with NaN (``nan``), with one number too many
(``layout``), or never (``silent``).
"""

import logging
import sys
import time
from pathlib import Path

import numpy as np
from cabafl.deployment.flower.internals import Link
from flwr.app import Context, Message

from cabafl.deployment import wire
from cabafl.deployment.device.loop import serve
from cabafl.deployment.device.participant import Participant
from cabafl.deployment.flower.app import Answers
from cabafl.deployment.folder.layout import CA, PRIVATE_KEY, Device
from cabafl.deployment.messages import TrainingReply


class OddDevice(Answers):
    """Behaves oddly for jobs only."""

    how = ""

    def __call__(self, message: Message, context: Context) -> Message:
        """Never returns a valid upload."""
        if message.metadata.message_type != wire.TRAIN:
            return super().__call__(message, context)
        job = wire.decode_job(message.content, self.length())
        weights = np.full(len(job.weights), np.nan, dtype=np.float32)
        if self.how == "silent":
            time.sleep(1000)
        if self.how == "layout":
            weights = np.zeros(len(job.weights) + 1, dtype=np.float32)
        return Message(content=wire.encode_reply(TrainingReply(weights, 0.1, 1.0, None)), reply_to=message)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    own = Device.load(Path(sys.argv[1]))
    odd = OddDevice(Participant(own))
    odd.how = sys.argv[2]
    serve(Link(own.server, own.folder / CA), odd, private_key=own.folder / PRIVATE_KEY, heartbeat=own.heartbeat)
