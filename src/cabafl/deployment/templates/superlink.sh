#!/bin/sh
# The SuperLink, on loopback only: its port also accepts control calls, which need no credentials.
set -eu
cd "$(dirname "$0")"
umask 077
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$PWD/state/flower"
mkdir -p "$FLWR_HOME"
cat >"$FLWR_HOME/config.toml" <<END
[superlink]
default = "fleet"

[superlink.fleet]
address = "@superlink@"
root-certificates = "$PWD/ca.crt"
END
exec flower-superlink \
    --host @loopback@ --port @superlink_port@ \
    --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
    --enable-supernode-auth \
    --database state/superlink.db \
    --isolation process \
    --disable-runtime-dependency-installation
