#!/bin/sh
# Unpacks the sources of frameworks that publish tests of sessions into .published, for tests/foreign/test_published.py.
#
# The tests are in the source distributions and not in the wheels. They are downloaded with the hashes of the lock.
set -eu
cd "$(dirname "$0")/.."
python=${VENV:-.venv}/bin/python
sources=$(mktemp -d)
trap 'rm -rf "$sources"' EXIT
for name in openai-agents langchain-core; do
    sed -n "/^$name==/,/^    # via/p" requirements/dev.txt | sed '/# via/d' >"$sources/source.txt"
    version=$(sed -n "s/^$name==\([^ ]*\).*/\1/p" "$sources/source.txt")
    folder=.published/$name
    [ "$(cat "$folder/version" 2>/dev/null)" = "$version" ] && continue
    if ! "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        --no-binary :all: --require-hashes --dest "$sources" -r "$sources/source.txt"; then
        echo "setup: no source of $name: its own tests are skipped." >&2
        continue
    fi
    rm -rf "$folder"
    mkdir -p "$folder"
    tar -xzf "$sources/$(echo "$name" | tr - _)-$version.tar.gz" -C "$folder" --strip-components 1
    echo "$version" >"$folder/version"
done
