"""Messages as Flower transfers them: a tree of objects, each pushed and pulled on its own."""

from flwr.app import Message
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents


def part_ids(tree: ObjectTree) -> list[str]:
    """IDs of all parts of a message, without duplicates."""
    return list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))


def assemble_message(root: str, parts: dict[str, bytes]) -> Message:
    """The message whose root object is ``root``; raises ValueError if that object is not a message."""
    message = inflate_object_from_contents(root, parts)
    if not isinstance(message, Message):
        raise ValueError("not a message")
    message.metadata.__dict__["_message_id"] = root
    return message
