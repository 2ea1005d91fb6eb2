#!/bin/sh
# Installs CaBaFL on this machine and starts it as a service; as root: sh install.sh FOLDER
# FOLDER is the folder of a device, or a fleet folder: then this machine is the server, with the broker beside it.
# Run it again to upgrade, or with renewed certificates. PYTHON names another Python than python3; settings of pip
# (PIP_EXTRA_INDEX_URL, ...) apply.
set -eu
umask 077
home=@home@
here=$(cd "$(dirname "$0")" && pwd)
units=${UNITS:-/etc/systemd/system}
python=${PYTHON:-python3}

fail() {
    echo "install.sh: $*" >&2
    exit 2
}

[ $# -eq 1 ] || fail "accepted: one argument, the folder of a device or of a fleet"
folder=$1
[ "$(id -u)" -eq 0 ] || fail "accepted: run as root"
[ -e "$folder/device.toml" ] || [ -e "$folder/fleet.toml" ] || fail "$folder: no device.toml or fleet.toml there"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python: accepted: Python 3.11 or newer"
set -- "$here"/cabafl-*.whl
[ -e "$1" ] || fail "$here: no wheel of cabafl there"
wheel=$1

id cabafl >/dev/null 2>&1 || useradd --system --home-dir "$home" --shell /usr/sbin/nologin cabafl
mkdir -p "$home"
chmod 755 "$home"
[ -x "$home/venv/bin/pip" ] || (umask 022 && "$python" -m venv "$home/venv")

# Whether the folder is the installed one already.
in_place() {
    [ "$(cd "$folder" && pwd -P)" = "$(cd "$target" && pwd -P)" ]
}

# Installs packages that the user of the units can read.
pip() {
    (umask 022 && "$home/venv/bin/pip" install --disable-pip-version-check --quiet "$@")
}

if [ -e "$folder/device.toml" ]; then
    pip --requirement "$here/requirements-device.txt"
    target=$home/device
    services=cabafl-device
    mkdir -p "$target"
    for file in "$folder"/*; do
        name=$(basename "$file")
        if in_place; then
            break
        elif [ "$name" = device.toml ] && [ -e "$target/$name" ]; then
            # The device's own settings stay; the address is the fleet's.
            address=$(grep '^server' "$file")
            sed "s|^server *=.*|$address|" "$target/$name" >"$target/.new"
            mv "$target/.new" "$target/$name"
        else
            cp -R "$file" "$target/"
        fi
    done
    unit_files=$folder/cabafl-device.service
else
    PATH="$PATH:/usr/sbin" command -v mosquitto >/dev/null || fail "mosquitto: not installed; accepted: version 2.0 or newer"
    pip "${wheel}[deploy]"
    target=$home/fleet
    services="cabafl-broker cabafl-server"
    mkdir -p "$target"
    # Private keys that this machine does not need stay behind.
    in_place || tar -C "$folder" --exclude=./ca.key --exclude='./devices/*/device.key' --exclude=./state -cf - . | tar -C "$target" -xf -
    mkdir -p "$target/state"
    unit_files="$folder/systemd/cabafl-broker.service $folder/systemd/cabafl-server.service"
fi
pip --no-deps --force-reinstall "$wheel"
if [ -n "$(ls "$target/revoked" 2>/dev/null)" ]; then
    # Devices that were removed here and not where the folder comes from stay removed.
    # shellcheck disable=SC2012  # the names are numbers
    "$home/venv/bin/cabafl" deploy init "$target" --remove "$(ls "$target/revoked" | paste -sd, -)"
fi
chown -R cabafl: "$target"

for unit in $unit_files; do
    cp "$unit" "$units/"
    chmod 644 "$units/$(basename "$unit")"
done
systemctl daemon-reload
for service in $services; do
    systemctl enable "$service"
    systemctl restart "$service"
done
