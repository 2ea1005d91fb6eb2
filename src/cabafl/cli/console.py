"""Output: colour only on a terminal, errors on standard error."""

import sys
from typing import NoReturn

from rich.console import Console

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def fail(message: str) -> NoReturn:
    """Prints one line and ends with exit code 2."""
    line = " ".join(message.split())
    errors.print(f"[bold red]error:[/] {_plain(line)}", soft_wrap=True)
    sys.exit(2)


def _plain(text: str) -> str:
    return text.replace("[", r"\[")
