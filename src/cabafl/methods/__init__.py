"""The methods: each is one file or package, found by name."""

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
    "evenkeel": "cabafl.methods.evenkeel:EvenKeel",
    "scaffold": "cabafl.methods.scaffold:Scaffold",
    "fedac": "cabafl.methods.fedac:FedAC",
    "periodic": "cabafl.methods.periodic:Periodic",
    "fadas": "cabafl.methods.fadas:FADAS",
    "port": "cabafl.methods.port:PORT",
    "pisces": "cabafl.methods.pisces:Pisces",
    "asyncfeded": "cabafl.methods.asyncfeded:AsyncFedED",
    "area": "cabafl.methods.area:AREA",
    "fedat": "cabafl.methods.fedat:FedAT",
}


def find(name: str) -> type[Method]:
    """Imports the class of a method: one of `NAMES`, or any ``package.module:Class``.

    Raises:
        KeyError: For an unknown name.
        ImportError, AttributeError: If the class cannot be imported.
        TypeError: If it is not a subclass of `Method`.
    """
    module, _, attribute = (name if ":" in name else NAMES[name]).partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise TypeError(f"{name} is not a subclass of cabafl.Method")
    return found
