#!/bin/sh
# Create .venv. Debian keeps what that takes in a package of its own: as root it is installed, else it is named.
set -eu
log=$(mktemp)
trap 'rm -f "$log"' EXIT

create() { rm -rf .venv && "$PYTHON" -m venv .venv >"$log" 2>&1; }

if ! create; then
    if ! grep -q ensurepip "$log"; then
        cat "$log" >&2
        exit 1
    fi
    package=$("$PYTHON" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        rm -rf .venv
        echo "Python cannot create a virtual environment here: install $package and try again." >&2
        exit 1
    fi
    echo "Installing $package"
    export DEBIAN_FRONTEND=noninteractive
    apt-get --quiet=2 update >/dev/null
    apt-get --quiet=2 install --yes --no-install-recommends "$package" >/dev/null
    create || { cat "$log" >&2; exit 1; }
fi
