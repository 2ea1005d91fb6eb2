#!/bin/sh
# Starts the broker in this folder. Needs no root.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p state/broker
PATH="$PATH:/usr/sbin:/usr/local/sbin"
# One file per connection.
# shellcheck disable=SC3045
ulimit -n "$(ulimit -H -n)"
configuration=mosquitto.conf
if [ "$(id -u)" -eq 0 ]; then
    # Under root Mosquitto changes to a user of its own, who cannot read this folder; its owner can.
    configuration=state/broker/mosquitto.conf
    { cat mosquitto.conf; echo "user $(stat -c %U .)"; } >"$configuration"
    chown "$(stat -c %u:%g .)" state/broker
fi
exec mosquitto -c "$configuration"
