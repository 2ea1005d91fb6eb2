#!/bin/sh
# The public port. Needs no root: nginx writes below state/proxy. Arguments are passed to nginx (-t: check only).
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p state/proxy
PATH="$PATH:/usr/sbin"
exec nginx -p "$PWD/state/proxy/" -c "$PWD/nginx.conf" "$@"
