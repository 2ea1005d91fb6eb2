"""Output: colour only on a terminal, errors on standard error."""

import sys
from typing import NoReturn

from rich.console import Console

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def fail(message: str, code: int = 2) -> NoReturn:
    """Prints one line and ends."""
    line = " ".join(message.split())
    errors.print(f"[bold red]error:[/] {_plain(line)}", soft_wrap=True)
    sys.exit(code)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
