"""The complete works of Shakespeare, Project Gutenberg's first edition (1994), cut into roles by LEAF's rules.

The edition is one text file. Each work begins with its title and the line "by William Shakespeare". In a play, a speech
begins with two spaces, the role's name and a full stop, and goes on in lines that begin with four spaces; The Comedy of
Errors has no indentation. All other lines (acts, licence notes, the sonnets) belong to no role. A work with one role or
none is not a play, and a role needs three lines.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

AUTHOR = "by William Shakespeare"
UNINDENTED = "THE COMEDY OF ERRORS"
FIRST_WORK = 2  # number of the author line to begin with; the first one is that of the sonnets
TITLE_ABOVE = range(2, 8)  # lines between the title and the author line
FEWEST_LINES = 3
_SPEECH = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_FURTHER = re.compile(r"    (.*)")
_FURTHER_UNINDENTED = re.compile(r"(.*)")
_SPEECH_UNINDENTED = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")

Play = dict[str, list[str]]  # role -> its lines


def roles(text: str) -> dict[str, list[str]]:
    """The lines of every role, by LEAF's user name: title and role, joined by underscores.

    Names that differ in upper and lower case only are one role.
    """
    found: dict[str, list[str]] = {}
    for title, play in _works(text.splitlines()):
        if len(play) < 2:
            continue
        for role, lines in play.items():
            if len(lines) >= FEWEST_LINES:
                found.setdefault(re.sub(r"\W+", "_", f"{title}_{role}"), []).extend(_squeezed(lines))
    return found


def _works(lines: Sequence[str]) -> list[tuple[str, Play]]:
    starts = [number for number, line in enumerate(lines) if AUTHOR in line][FIRST_WORK - 1 :]
    works = []
    for start, end in pairwise([*starts, len(lines)]):
        title = next((lines[start - up].strip() for up in TITLE_ABOVE if start >= up and lines[start - up].strip()), "")
        if title:
            works.append((title, _play(lines[start + 1 : end], title == UNINDENTED)))
    return works


def _play(lines: Sequence[str], unindented: bool) -> Play:
    play: Play = {}
    role = None
    for line in lines:
        speech = (_SPEECH_UNINDENTED if unindented else _SPEECH).match(line)
        further = (_FURTHER_UNINDENTED if unindented else _FURTHER).match(line)
        if speech is not None:
            role = None if unindented and speech[1].upper().startswith("ACT ") else speech[1].upper()
            if role is not None:
                play.setdefault(role, []).append(speech[2])
        elif unindented and line.startswith("<"):  # a licence note
            role = None
        elif role is not None and further is not None:
            play[role].append(further[1])
    return play


def _squeezed(lines: Sequence[str]) -> list[str]:
    """Single spaces only; empty lines are left out."""
    return [text for line in lines if (text := " ".join(line.split()))]
