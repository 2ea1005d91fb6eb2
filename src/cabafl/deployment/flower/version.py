"""Which Flower this was written for."""

from importlib.metadata import PackageNotFoundError, version

from cabafl.errors import UserError

VERSION = "1.41"


def require_flower() -> None:
    """The installed Flower is the one whose internals are used here."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        found = "none"
    if not found.startswith(f"{VERSION}."):
        raise UserError(f"flwr = {found}: accepted: {VERSION}.*, by pip install 'cabafl[deploy]'")
