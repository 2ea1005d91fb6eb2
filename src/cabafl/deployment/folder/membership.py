"""Changes a standing fleet: removes devices, renews certificates, changes settings."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cabafl.deployment.broker import reload_broker
from cabafl.deployment.folder.certificates import Authority, load_certificate, load_revocations, public_key
from cabafl.deployment.folder.layout import (
    BROKER,
    CA_KEY,
    DEVICE,
    DEVICE_USER,
    ISSUED,
    OWN,
    REVOCATIONS,
    REVOKED,
    SERVER,
    Device,
    FleetFolder,
    FleetSettings,
)
from cabafl.deployment.folder.provision import DEVICE_UNIT, issue, load_authority, write_configuration
from cabafl.deployment.folder.writing import access_list, hand_over, render, replace, template_values
from cabafl.errors import UserError
from cabafl.toml import toml_value
from cabafl.validation import validated

_SERVER_LINE = re.compile(r"^server\s*=.*$", re.MULTILINE)


@dataclass(frozen=True)
class MembershipChange:
    """What has become of a change: whether it is on the revocation list, and whether a broker that was started from
    this folder has read it."""

    listed: bool
    reloaded: bool


def remove_devices(fleet: FleetFolder, numbers: Collection[int]) -> MembershipChange:
    """Shuts devices out for good. May be repeated.

    The access list makes a connected device mute; the revocation list refuses its next connection. The latter needs
    the authority's key, and waits for the machine that has it.
    """
    present = fleet.device_folders()
    for number in numbers:
        if number not in present and number not in fleet.revoked_ids():
            raise UserError(f"--remove = {number}: no such device; accepted: {', '.join(map(str, present)) or 'none'}")
    (fleet.path / REVOKED).mkdir(exist_ok=True)
    for number in set(numbers) & present.keys():
        present[number].rename(fleet.path / REVOKED / f"{number:03}")
    access_list(fleet)
    listed = (fleet.path / CA_KEY).exists()
    if listed:
        write_revocations(fleet, load_authority(fleet))
    return MembershipChange(listed, reload_broker(fleet))


def write_revocations(fleet: FleetFolder, authority: Authority) -> None:
    """Writes the revocation list: every certificate ever issued to a removed device."""
    removed = {DEVICE_USER.format(number) for number in fleet.revoked_ids()}
    index = issued(fleet)
    serials = [serial for serial, user in index.items() if user in removed]
    replace(fleet, REVOCATIONS, authority.revoke(serials, load_revocations(fleet.path / REVOCATIONS)))


def issued(fleet: FleetFolder) -> dict[int, str]:
    """Serial numbers of all certificates ever issued, and the users they belong to."""
    try:
        lines = (fleet.path / ISSUED).read_text(encoding="utf-8").split("\n")
        return {int(serial, 16): user for serial, user in (line.split() for line in lines if line)}
    except (OSError, ValueError):
        raise UserError(
            f"{fleet.path / ISSUED}: cannot be read; accepted: the file `cabafl deploy init` has made, which lists "
            "certificates that may have to be revoked"
        ) from None


def renew(fleet: FleetFolder, given: Mapping[str, Any]) -> tuple[FleetFolder, MembershipChange]:
    """New certificates for broker, server and all devices, with the keys they have; settings changed by ``given``.

    Only public keys are needed, so private keys stay where they are. Older certificates stay valid until they expire.
    """
    authority = load_authority(fleet)
    if given.keys() & {"name", "ip"}:
        given = {"name": (), "ip": (), **given}
    settings = validated(FleetSettings, {**fleet.settings.model_dump(), **given})
    changed = FleetFolder(fleet.path, settings)
    write_configuration(changed)
    _renew(changed, authority, BROKER, fleet.path / f"{BROKER}.crt")
    _renew(changed, authority, SERVER, fleet.certificate)
    for number, folder in changed.device_folders().items():
        _renew(changed, authority, DEVICE_USER.format(number), folder / f"{OWN}.crt")
        _readdress(changed, number, folder)
    write_revocations(changed, authority)
    hand_over(changed.path, changed.path)
    return changed, MembershipChange(True, reload_broker(changed))


def _renew(fleet: FleetFolder, authority: Authority, user: str, file: Path) -> None:
    key = public_key(load_certificate(file))
    if user == BROKER:
        certificate = authority.sign_broker(key, *fleet.settings.certified)
    else:
        certificate = authority.sign_client(key, user)
    issue(fleet, user, file, certificate)


def _readdress(fleet: FleetFolder, number: int, folder: Path) -> None:
    """Changes the broker's address in ``device.toml`` and nothing else: the rest belongs to the device."""
    Device.load(folder)
    line = f"server = {toml_value(fleet.settings.address)}"
    file = folder / DEVICE
    file.write_text(_SERVER_LINE.sub(line, file.read_text(encoding="utf-8"), count=1), encoding="utf-8")
    render(folder / DEVICE_UNIT, {**template_values(fleet.settings), "id": str(number)})
