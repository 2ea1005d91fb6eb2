"""Output: colour only on a terminal, errors on standard error. What is printed is text, never markup."""

import sys
from typing import NoReturn

from rich.console import Console
from rich.text import Text

console = Console(highlight=False, markup=False)
errors = Console(stderr=True, highlight=False, markup=False)


def fail(message: str, code: int = 2) -> NoReturn:
    """Prints one line and ends."""
    tell("error", " ".join(message.split()), "bold red")
    sys.exit(code)


def tell(word: str, text: str, style: str = "yellow") -> None:
    """A line on standard error, its first word in colour."""
    errors.print(Text.assemble((f"{word}:", style), f" {text}"), soft_wrap=True)
