"""Files of a data set on the Hugging Face Hub, by plain HTTP: listed, downloaded, and checked against the list."""

import json
import os
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from cabafl.data.parquet import require_pyarrow
from cabafl.data.transfer import SourceError, Workplace, check_sha256, download

HOME = "https://huggingface.co"
CONVERTED = "refs/convert/parquet"  # the branch that the Hub itself writes, for sets that are stored as something else


def home() -> str:
    """The Hub, or the mirror that $HF_ENDPOINT names."""
    return (os.environ.get("HF_ENDPOINT") or HOME).rstrip("/")


def download_parquet(repository: str, revision: str, work: Workplace) -> Path:
    """Downloads all Parquet files of a repository and returns their folder. Their SHA-256 sums come from the Hub."""
    require_pyarrow()
    branch = quote(revision, safe="")
    for path, sha256 in _listing(f"{home()}/api/datasets/{repository}/tree/{branch}?recursive=true", work):
        place = replace(work, downloads=work.downloads / path.parent)
        file = download(f"{home()}/datasets/{repository}/resolve/{branch}/{quote(str(path))}", place)
        check_sha256(file, sha256)
    return work.downloads


def _listing(url: str, work: Workplace) -> list[tuple[PurePosixPath, str]]:
    """Path and SHA-256 of every Parquet file. The list itself is not kept for a later call."""
    content = download(url, replace(work, downloads=work.scratch / "list")).read_bytes()
    try:
        entries = [
            (PurePosixPath(entry["path"]), str(entry["lfs"]["oid"]))
            for entry in json.loads(content)
            if entry["type"] == "file" and entry["path"].endswith(".parquet")
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SourceError(f"{url}: not a list of files") from None
    if not entries or any(path.is_absolute() or ".." in path.parts for path, _ in entries):
        raise SourceError(f"{url}: no Parquet files with usable names")
    return sorted(entries)
