"""Terminal output: colour only on a terminal, warnings and errors on standard error, no rich markup."""

import os
import sys
from typing import Any, NoReturn

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

NARROW = 80  # columns; a narrower terminal shows a table that does not fit row by row


class SteadyConsole(Console):
    """Output that nobody reads any more, or that a full disk cannot take, ends no run: after `cabafl run | head -1` it
    goes on without output."""

    def __exit__(self, *raised: Any) -> None:
        """After each print: what was printed is written."""
        try:
            super().__exit__(*raised)
        except OSError as error:
            self.on_broken_pipe()
            if not self.stderr:
                print_notice("warning", f"standard output cannot be written: {error.strerror}; no more follows there")

    def on_broken_pipe(self) -> None:
        """Drops what is still to be written."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


console = SteadyConsole(highlight=False, markup=False)
errors = SteadyConsole(stderr=True, highlight=False, markup=False)


def fail(message: str, code: int = 2) -> NoReturn:
    """Prints the message as one line on standard error and exits."""
    print_notice("error", " ".join(message.split()), "bold red")
    sys.exit(code)


def print_notice(kind: str, text: str, style: str = "yellow") -> None:
    """Prints ``kind: text`` on standard error, the kind in colour."""
    errors.print(Text.assemble((f"{kind}:", style), f" {text}"), soft_wrap=True)


def print_table(table: Table, narrow: int = NARROW, screen: Console | None = None) -> None:
    """Prints a table; row by row, each cell on a line, if it does not fit and there are fewer than ``narrow``
    columns."""
    screen = screen or console
    wanted = Measurement.get(screen, screen.options.update(max_width=10_000), table).maximum
    if screen.width >= narrow or wanted <= screen.width:
        screen.print(table)
        return
    if table.title:
        screen.print(table.title)
    for cells in zip(*(column.cells for column in table.columns), strict=True):
        first, *rest = cells
        screen.print(first, style="bold")
        for column, cell in zip(table.columns[1:], rest, strict=True):
            heading = " ".join(str(column.header).split())
            label = f"{heading}: " if table.show_header and heading else ""
            screen.print(Text.assemble("  ", label, cell if isinstance(cell, Text | str) else str(cell)))


class LiveFile:
    """A text file whose lines appear above a live progress bar."""

    def write(self, text: str) -> int:
        """Prints through the console that owns the bar."""
        if text.strip():
            console.print(text.rstrip("\n"), soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """Lines appear at once."""
