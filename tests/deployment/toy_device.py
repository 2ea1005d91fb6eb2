"""A device process for tests: ``python -m tests.deployment.toy_device ADDRESS``.

It "trains" by adding 1 to every weight. Job 13 fails; job 100 + n sleeps for n seconds.
"""

import logging
import os
import sys
import time

from flwr.app import Context, Message, RecordDict

from cabafl.deployment import wire
from cabafl.deployment.device.loop import serve
from cabafl.deployment.flower.internals import Link
from cabafl.deployment.messages import TrainingReply


def handle(message: Message, context: Context) -> Message:
    """Reports its process ID as the number of its samples and as the seconds of its trainings."""
    content: RecordDict
    if message.metadata.message_type == wire.HELLO:
        content = wire.encode_hello(os.getpid(), fresh=True)
    else:
        job = wire.decode_job(message.content, 1000)
        if job.number == 13:
            raise OSError("private")
        time.sleep(max(0, job.number - 100))
        content = wire.encode_reply(TrainingReply(job.weights + 1, os.getpid(), 0.0, None))
    return Message(content=content, reply_to=message)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    serve(Link(sys.argv[1], insecure=True), handle, heartbeat=10.0)
