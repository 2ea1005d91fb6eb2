#!/bin/sh
# Installs the devices over ssh, several at a time: sh install-all.sh HOSTS
# Line by line the file HOSTS names the machines of devices 0, 1, 2, ... as ssh knows them, with root or sudo without a
# password there. A line "-" skips a device; empty lines and lines that start with # do not count.
# JOBS: machines at a time (8). Run it again for those that failed: what is installed already takes seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

# one NUMBER HOST: sends wheel, scripts and the device's folder, and installs them there.
one() {
    name=$(printf %03d "$1")
    log=$(mktemp)
    # shellcheck disable=SC2016  # expands on the other machine
    remote='set -eu; folder=$(mktemp -d); trap "rm -rf \"$folder\"" EXIT; tar -C "$folder" -xf -
        if [ "$(id -u)" -eq 0 ]; then as=; else as="sudo -n"; fi; $as sh "$folder/install.sh" "$folder/'$name'"'
    if tar -C "$here/install" -cf - . -C "$here/devices" "$name" 2>>"$log" | ssh -o BatchMode=yes "$2" "$remote" >>"$log" 2>&1; then
        echo "device $1 on $2: installed"
        rm "$log"
    else
        echo "device $1 on $2: failed, $(tail -n 1 "$log") ($log)"
        return 1
    fi
}

if [ "${1:-}" = --one ]; then
    one "$2" "$3"
    exit
fi
if [ $# -ne 1 ] || [ ! -r "$1" ]; then
    echo "install-all.sh: accepted: one argument, a file with one machine in each line" >&2
    exit 2
fi
number=0
while read -r host; do
    case $host in
    '' | '#'*) continue ;;
    -) ;;
    *) echo "$number $host" ;;
    esac
    number=$((number + 1))
done <"$1" | xargs -r -n 2 -P "${JOBS:-8}" sh "$here/install-all.sh" --one
