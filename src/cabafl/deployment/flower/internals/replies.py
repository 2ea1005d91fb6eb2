"""Replies of devices as the server pulls them from the SuperLink: part by part, limited in size, not trusted."""

import json
from dataclasses import dataclass

from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.message.array import Array
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.common.serde_utils import error_from_proto, metadata_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content

from cabafl.deployment.flower.internals.objects import assemble_message

PART_LIMIT = 5_000_000  # largest part of a reply that is not an array chunk, in bytes
PIECE = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE


class UploadLost(Exception):
    """A device started to upload a reply and never finished."""


@dataclass
class Arrival:
    """A reply handed out by the SuperLink; the device may still be uploading some of its parts."""

    envelope: ProtoMessage
    missing: list[str]
    parts: dict[str, bytes]


def error_of(arrival: Arrival) -> Error | None:
    """The error, if the reply is one."""
    return error_from_proto(arrival.envelope.error) if arrival.envelope.HasField("error") else None


def make_reply(arrival: Arrival, content: RecordDict | Error) -> Message:
    """A reply with the metadata checked by the SuperLink; the metadata inside the reply can be forged by the device.

    The reason of an error may be written by the device: it is cut to one line of at most 200 characters.
    """
    metadata = metadata_from_proto(arrival.envelope.metadata)
    if isinstance(content, Error):
        reason = " ".join((content.reason or "").split())[:200]
        return make_message(metadata, error=Error(content.code, reason))
    return make_message(metadata, content=content)


def content_of(arrival: Arrival, max_bytes: int) -> RecordDict:
    """The content of a reply whose parts are all here; a malformed one can raise any exception.

    An array lists its chunks by number and may list one many times, so a small upload could fill the memory:
    ``max_bytes`` limits the expanded size of all arrays together.
    """
    total = 0
    for part in arrival.parts.values():
        kind, pieces, _ = get_object_head_values_from_object_content(part)
        if kind != "ArrayChunk" and len(part) > PART_LIMIT:
            raise ValueError(f"a part of {len(part)} bytes")
        if kind == "Array":
            numbers = json.loads(get_object_body(part, Array))["arraychunk_ids"]
            total += sum(len(arrival.parts[pieces[number]]) for number in numbers)
    if total > max_bytes:
        raise ValueError(f"arrays of {total} bytes, more than {max_bytes}")
    return assemble_message(arrival.envelope.metadata.message_id, arrival.parts).content
