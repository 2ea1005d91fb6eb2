"""Whether the Hugging Face Hub answers. Without a network its library tries every request six times, for a minute."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from cabafl.data.files import one_line

PAUSE = 1.0  # seconds before the second attempt
PATIENCE = 10.0  # seconds for an answer, as the library has it


def unreachable() -> str | None:
    """Why the Hub cannot be asked; None if it answers, whatever it says. The library's own client asks, so that
    proxies, certificates and ``$HF_ENDPOINT`` are those of the download."""
    import huggingface_hub
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "$HF_HUB_OFFLINE is set"
    reason = ""
    for pause in (0.0, PAUSE):
        time.sleep(pause)
        try:
            huggingface_hub.get_session().head(constants.ENDPOINT, timeout=PATIENCE)
        except Exception as error:  # its clients differ between versions, and so do their errors
            reason = f"{constants.ENDPOINT} does not answer ({one_line(error)})"
        else:
            return None
    return reason


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Meanwhile, the library reads what it has downloaded before, and asks nobody."""
    import datasets
    from huggingface_hub import constants

    modules: tuple[Any, ...] = (datasets.config, constants)
    before = [module.HF_HUB_OFFLINE for module in modules]
    for module in modules:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value
