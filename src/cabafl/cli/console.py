"""Terminal output: colour only on a terminal, warnings and errors on standard error, no rich markup."""

import sys
from typing import NoReturn

from rich.console import Console
from rich.text import Text

console = Console(highlight=False, markup=False)
errors = Console(stderr=True, highlight=False, markup=False)


def fail(message: str, code: int = 2) -> NoReturn:
    """Prints the message as one line on standard error and exits."""
    print_notice("error", " ".join(message.split()), "bold red")
    sys.exit(code)


def print_notice(kind: str, text: str, style: str = "yellow") -> None:
    """Prints ``kind: text`` on standard error, the kind in colour."""
    errors.print(Text.assemble((f"{kind}:", style), f" {text}"), soft_wrap=True)


class LiveFile:
    """A text file whose lines appear above a live progress bar."""

    def write(self, text: str) -> int:
        """Prints through the console that owns the bar."""
        if text.strip():
            console.print(text.rstrip("\n"), soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """Lines appear at once."""
