"""Puts the package itself into a fleet folder: it is on no index.

The wheel is made from the files that are installed here, whichever way they came: a wheel is a zip file of the package
and of its metadata, with a list of checksums.
"""

import base64
import hashlib
import re
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from cabafl.deployment.folder.layout import FleetFolder
from cabafl.deployment.folder.writing import hand_over, render, template_values
from cabafl.errors import UserError

PACKAGE = "cabafl"
INSTALL = "install"
REQUIREMENTS = "requirements-device.txt"
DEVICE_NEEDS = ("torch", "numpy", "pydantic", "typer", "rich", "paho-mqtt", "cryptography")
_WHEEL = "Wheel-Version: 1.0\nGenerator: cabafl deploy init\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EPOCH = (1980, 1, 1, 0, 0, 0)
_HEADER = """\
# What a device needs, beside the wheel (`pip install --no-deps`). Add what your experiments use:
# opacus (DP-SGD), pillow (`cabafl data fetch cifar10`).
"""


def write_installer(fleet: FleetFolder) -> Path:
    """Writes the folder ``install`` (wheel, requirements, script) and the loop over machines; returns the wheel."""
    folder = fleet.path / INSTALL
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    wheel = build_wheel(folder)
    (folder / REQUIREMENTS).write_text(_HEADER + "".join(f"{line}\n" for line in device_requirements()), "utf-8")
    values = template_values(fleet.settings)
    for path in (folder / "install.sh", fleet.path / "install-all.sh"):
        render(path, values)
        path.chmod(0o700)
    hand_over(fleet.path, fleet.path)
    return wheel


def build_wheel(folder: Path) -> Path:
    """Writes the wheel of the running package into ``folder``. The same files give the same bytes."""
    found = _installed()
    stem = f"{PACKAGE}-{found.version}"
    path = folder / f"{stem}-py3-none-any.whl"
    record = f"{stem}.dist-info/RECORD"
    lines = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (*_package_files(), *_metadata_files(found, f"{stem}.dist-info")):
            _add(archive, name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}\n")
        _add(archive, record, "".join([*lines, f"{record},,\n"]).encode())
    return path


def device_requirements() -> list[str]:
    """What the package requires, cut down to what a device process imports."""
    required = {}
    for line in _installed().requires or ():
        requirement = line.split(";")[0].strip()
        name = _NAME.match(requirement)
        if name:
            required[name[0].lower()] = requirement
    return [required.get(name, name) for name in DEVICE_NEEDS]


def _package_files() -> Iterator[tuple[str, bytes]]:
    root = Path(__file__).parents[2]  # of the package
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            yield f"{PACKAGE}/{path.relative_to(root).as_posix()}", path.read_bytes()


def _metadata_files(found: Distribution, folder: str) -> Iterator[tuple[str, bytes]]:
    """Description, commands and licence; what tells of this installation is left out."""
    for name in ("METADATA", "entry_points.txt"):
        text = found.read_text(name)
        if text is None:
            raise UserError(f"cabafl: its installation has no {name}; accepted: an installation by pip")
        yield f"{folder}/{name}", text.encode()
    yield f"{folder}/WHEEL", _WHEEL.encode()
    for each in found.files or ():
        if each.parent.name == "licenses":
            yield f"{folder}/licenses/{each.name}", Path(str(each.locate())).read_bytes()


def _installed() -> Distribution:
    try:
        return distribution(PACKAGE)
    except PackageNotFoundError:
        raise UserError("cabafl: runs without being installed; accepted: an installation by pip") from None


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)
