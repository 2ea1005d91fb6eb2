"""Copies finished runs without their large files, to be kept in the repository: results/README.md."""

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

from cabafl.files import write_atomic
from cabafl.recording.folder import ENVIRONMENT, EXPERIMENT, METRICS, SUMMARY

ROOT = re.compile(r'(?m)^(root = ")[^"\n]*/(?=[^"/\n]+")')
KEPT = (EXPERIMENT, ENVIRONMENT, METRICS, SUMMARY)  # the summary last: it marks a run as finished


def keep(source: Path, target: Path, commit: str) -> list[str]:
    """Copies the finished runs below ``source`` that ``target`` does not have yet; returns their names."""
    kept = []
    for summary in sorted(source.rglob(SUMMARY)):
        folder, copy = summary.parent, target / summary.parent.name
        if (copy / SUMMARY).exists():
            continue
        copy.mkdir(parents=True, exist_ok=True)
        write_atomic(copy / "commit", f"{commit}\n".encode())
        for name in KEPT:
            shutil.copyfile(folder / name, copy / name)
            if name == EXPERIMENT:
                text = (copy / name).read_text(encoding="utf-8")
                write_atomic(copy / name, ROOT.sub(r"\1", text).encode())  # the data's file, not where it was
            if name == ENVIRONMENT:
                about = json.loads((copy / name).read_text())
                about.pop("folder", None)  # where the run was started: of that machine only
                write_atomic(copy / name, f"{json.dumps(about, indent=2)}\n".encode())
        kept.append(folder.name)
    return kept


def main() -> int:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--commit", required=True, help="of the program that made the runs")
    given = parser.parse_args()
    for name in keep(given.source, given.target, given.commit):
        sys.stdout.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
