"""Reads the lines of an event log as the engine writes them, many at once and without decoding each.

Takes less than half as long as decoding and sorting them by kind. Anything unusual raises `Unusual`: then `lines.parse`
decodes every line. What is checked of a line: its time and its kind, all of a dispatch or an upload, and of the others
that they end as an object does. A line that has two times or two kinds counts with the first; a decoder takes the last.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import orjson

from cabafl.watch.columns import Array

FIELDS = {
    "dispatch": {"job": "i8", "device": "i8", "slot": "i8", "version": "i8", "due": "f8"},
    "upload": {"job": "i8", "device": "i8", "slot": "i8", "version": "i8", "staleness": "i8"},
}  # in the order of the line, after time and kind
LATEST = 1e15  # seconds: no run lasts 30 million years
LONGEST_KIND = 100  # letters in the name of a kind
_TIME, _KIND = b'{"time":', b',"event":"'
_LONGEST_TIME = 24  # letters
_MOST_STARTS = 500  # different first letters of kinds
_COMMA, _LINE_END, _BRACE, _ZERO = b",\n}0"
_ONES = 0x0101010101010101


class Unusual(Exception):
    """A line that only a JSON decoder can judge."""


class Quick(NamedTuple):
    """What is read of complete lines."""

    begin: Array  # of each line
    end: Array
    time: Array
    groups: dict[str, Array]  # kind -> its lines
    columns: dict[str, dict[str, Array]]  # kind -> field -> values, of dispatches and uploads


def read(content: bytes) -> Quick:
    """Reads complete lines, each with its line end."""
    return _LineReader(content).read()


class _LineReader:
    def __init__(self, content: bytes) -> None:
        self.content = content
        padded = content + bytes(LONGEST_KIND + 4 * _LONGEST_TIME)
        self.letters = np.frombuffer(padded, dtype=np.uint8)
        self.words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))  # eight letters from each place on
        ends = np.flatnonzero(self.letters[: len(content)] == _LINE_END)
        if not len(ends) or ends[-1] != len(content) - 1:
            raise Unusual
        self.end = ends
        self.begin = np.append(0, ends[:-1] + 1)
        self.commas = np.append(np.flatnonzero(self.letters == _COMMA), len(content))
        self.first = np.searchsorted(self.commas, self.begin)  # the comma after the time
        self.kind = self.commas[self.first] + len(_KIND)

    def read(self) -> Quick:
        after_time = self.kind - len(_KIND)
        self._check(self.begin, _TIME)
        self._check(after_time, _KIND)
        if (self.letters[self.end - 1] != _BRACE).any() or (self.kind >= self.end).any():
            raise Unusual
        time = self._times(self.begin + len(_TIME), after_time)
        groups = self._groups()
        columns = {kind: self._columns(kind, groups[kind], time) for kind in FIELDS if kind in groups}
        return Quick(self.begin, self.end, time, groups, columns)

    def _stands(self, place: Array, text: bytes) -> Array:
        """At which of the places the text stands."""
        if len(text) < 8:
            short: Array = self.words[place] & np.uint64((1 << 8 * len(text)) - 1) == _word(text)
            return short
        found = np.ones(len(place), dtype=bool)
        for at in (*range(0, len(text) - 8, 8), len(text) - 8):
            found &= self.words[place + at] == _word(text[at:])
        return found

    def _check(self, place: Array, text: bytes) -> None:
        """Whether the text stands at each of the places."""
        if not self._stands(place, text).all():
            raise Unusual

    def _times(self, begin: Array, end: Array) -> Array:
        """An upload and what follows from it have the same time, which is read once."""
        length = end - begin
        if length.max() > _LONGEST_TIME or length.min() < 1:
            raise Unusual
        new = np.append(True, length[1:] != length[:-1])
        for at in range(0, _LONGEST_TIME, 8):
            kept = np.clip(length - at, 0, 8).astype(np.uint64)
            # The letters of the time in this word; shifted twice, because a word cannot be shifted by all its bits.
            half = np.uint64(4) * (np.uint64(8) - kept)
            word = self.words[begin + at] << half << half
            new[1:] |= word[1:] != word[:-1]
        times: Array = self._floats(begin[new], end[new])[np.cumsum(new) - 1]
        return times

    def _floats(self, begin: Array, end: Array) -> Array:
        content = self.content
        texts = [content[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
        try:
            found = np.fromiter(orjson.loads(b"[" + b",".join(texts) + b"]"), np.float64, len(texts))
        except (ValueError, TypeError, OverflowError):
            raise Unusual from None
        if not (np.abs(found) < LATEST).all():
            raise Unusual
        return found

    def _groups(self) -> dict[str, Array]:
        """The lines of each kind, told apart by their first eight letters."""
        starts, firsts, member = np.unique(self.words[self.kind], return_index=True, return_inverse=True)
        if len(starts) > _MOST_STARTS:
            raise Unusual
        order = np.argsort(member, kind="stable")
        bounds = np.cumsum(np.bincount(member, minlength=len(starts)))[:-1]
        found: dict[str, list[Array]] = {}
        for first, lines in zip(firsts.tolist(), np.split(order, bounds), strict=True):
            for kind, own in self._split(first, lines):
                found.setdefault(kind, []).append(own)
        # A short kind has one start for each letter that may follow it.
        return {kind: own[0] if len(own) == 1 else np.sort(np.concatenate(own)) for kind, own in found.items()}

    def _split(self, first: int, lines: Array) -> Iterator[tuple[str, Array]]:
        """The kinds of lines with the same first letters; ``first`` is one of them."""
        while len(lines):
            name = self._name(first)
            own = self._stands(self.kind[lines], name.encode() + b'"')
            yield name, lines[own]
            lines = lines[~own]
            first = int(lines[0]) if len(lines) else first

    def _name(self, line: int) -> str:
        """The kind of one line."""
        start = int(self.kind[line])
        text, quote, _ = self.content[start : min(int(self.end[line]), start + LONGEST_KIND + 1)].partition(b'"')
        if not quote or b"\\" in text or not text.isascii() or not text.decode().isprintable():
            raise Unusual
        return text.decode()

    def _columns(self, kind: str, lines: Array, time: Array) -> dict[str, Array]:
        """The numbers of dispatches or uploads: they have just these fields, in this order."""
        fields, first, end = FIELDS[kind], self.first[lines], self.end[lines]
        if ((np.searchsorted(self.commas, end) - first) != 1 + len(fields)).any():
            raise Unusual
        if (self.commas[first + 1] != self.kind[lines] + len(kind) + 1).any():
            raise Unusual
        found = {"time": time[lines]}
        for number, (name, type_) in enumerate(fields.items(), 1):
            comma, text = self.commas[first + number], f',"{name}":'.encode()
            self._check(comma, text)
            begin = comma + len(text)
            stop = end - 1 if number == len(fields) else self.commas[first + number + 1]
            found[name] = self._floats(begin, stop) if type_ == "f8" else self._counts(begin, stop)
        return found

    def _counts(self, begin: Array, end: Array) -> Array:
        """Whole numbers of one to eight digits, eight letters at once."""
        length = end - begin
        if length.min() < 1 or length.max() > 8 or ((self.letters[begin] == _ZERO) & (length > 1)).any():
            raise Unusual
        # The last eight letters; those before the number, which are the first and so the lowest, become zeros.
        low = (np.uint64(1) << (np.uint64(8) * (8 - length).astype(np.uint64))) - np.uint64(1)
        digits = (self.words[end - 8] & ~low) | (np.uint64(0x30 * _ONES) & low)
        high = np.uint64(0xF0 * _ONES)
        is_digit = ((digits & high) | (((digits + np.uint64(0x06 * _ONES)) & high) >> np.uint64(4))) == 0x33 * _ONES
        if not is_digit.all():
            raise Unusual
        pairs = digits - np.uint64(0x30 * _ONES)
        pairs = (pairs * np.uint64(10) + (pairs >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
        fours = (pairs * np.uint64(100) + (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
        eight: Array = (fours * np.uint64(10_000) + (fours >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
        return eight.astype(np.int64)


def _word(text: bytes) -> np.uint64:
    """The first eight letters as one number."""
    return np.uint64(int.from_bytes(text[:8], "little"))
