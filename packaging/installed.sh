#!/bin/sh
# Runs inside a clean Debian, for packaging/check.sh: installs /dist, prints the story of the program, and removes all again.
# /model is a model to serve.
#
#   sh installed.sh archive     # the archive for one user, by install.sh
#   sh installed.sh deb         # the package, and the command of its unit, as systemd would start it
set -eu

tell() { "$1" run -q -n 40 --temp 0; }

archive() {
    HOME=/root
    export HOME
    sh /dist/install.sh --from /dist >&2
    tell "$HOME/.local/bin/girih"
    sh /dist/install.sh --uninstall >&2
    [ -z "$(find "$HOME/.local" -type f)" ]
}

deb() {
    dpkg -i /dist/girih_*_"$(dpkg --print-architecture)".deb >&2
    tell girih
    girih --version >&2
    serve >&2
    dpkg -r girih >&2
    [ ! -e /usr/bin/girih ]
    [ -e /etc/girih/serve.env ]
    dpkg -P girih >&2
    [ ! -e /etc/girih ]
}

# Starts what the unit starts, asks it for its health, and ends it as systemd does.
serve() {
    port=28173
    mkdir -p /var/lib/girih/models
    cp -r /model /var/lib/girih/models/
    command="$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/girih.service)"
    # shellcheck disable=SC2086 # the words of a command
    HOME=/var/lib/girih GIRIH_PORT=$port $command &
    server=$!
    tries=0
    until girih health --url "http://127.0.0.1:$port" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || { echo "the server does not answer" >&2; exit 1; }
        sleep 0.2
    done
    kill -TERM $server
    wait $server
}

"$1"
