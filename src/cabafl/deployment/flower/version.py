"""The version of Flower this package is written for."""

from importlib.metadata import PackageNotFoundError, version

from cabafl.errors import UserError

VERSION = "1.41"


def require_flower() -> None:
    """Raises `UserError` unless Flower 1.41 is installed: `flower.internals` depends on that version."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        found = "none"
    if not found.startswith(f"{VERSION}."):
        raise UserError(f"flwr = {found}: accepted: {VERSION}.*, by pip install 'cabafl[deploy]'")
