"""What the server decides: one file per method, found by name."""

import importlib

from cabafl.methods.base import Method

NAMES: dict[str, str] = {
    "cabafl": "cabafl.methods.cabafl:CaBaFL",
    "fedavg": "cabafl.methods.fedavg:FedAvg",
    "fedprox": "cabafl.methods.fedprox:FedProx",
    "fedasync": "cabafl.methods.fedasync:FedAsync",
    "fedsa": "cabafl.methods.fedsa:FedSA",
    "safa": "cabafl.methods.safa:SAFA",
    "wkafl": "cabafl.methods.wkafl:WKAFL",
    "fedbuff": "cabafl.methods.fedbuff:FedBuff",
    "ca2fl": "cabafl.methods.ca2fl:CA2FL",
    "gitfl": "cabafl.methods.gitfl:GitFL",
}


def find(name: str) -> type[Method]:
    """The class of a method: one of `NAMES`, or any ``package.module:Class`` of the user's.

    Raises KeyError for an unknown name, and ImportError, AttributeError or TypeError for a class that is not to be had.
    """
    module, _, attribute = (name if ":" in name else NAMES[name]).partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise TypeError(f"{name} is not a subclass of cabafl.methods.base.Method")
    return found
