#!/bin/sh
# Unpacks the servers of Graphiti into an environment: `graphiti_source.sh .venv-graphiti`.
#
# They are in the source distribution of graphiti-core and not in its wheel. It is downloaded with the hash of the lock.
set -eu
cd "$(dirname "$0")/.."
environment=$1
folder=$environment/graphiti
[ -d "$folder/server" ] && exit 0
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
sed -n '/^graphiti-core/,/^    # via/p' requirements/graphiti.txt | sed 's/\[falkordb\]//; /# via/d' >"$sources/source.txt"
"$environment/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --no-binary :all: --require-hashes --dest "$sources" -r "$sources/source.txt"
mkdir -p "$sources/unpacked"
tar -xzf "$sources"/graphiti_core-*.tar.gz -C "$sources/unpacked"
rm -rf "$folder"
mkdir "$folder"
mv "$sources"/unpacked/*/server "$sources"/unpacked/*/mcp_server "$folder"
echo "setup: the servers of Graphiti are in $folder" >&2
