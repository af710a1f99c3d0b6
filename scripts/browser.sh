#!/bin/sh
# Adds the driver of the browser, and axe, to the environment of the tests, from the lock.
set -eu
cd "$(dirname "$0")/.."
environment=${VENV:-.venv}
cmp -s requirements/browser.txt "$environment/threadkeep-browser" && exit 0
set -- --no-deps --require-hashes --only-binary :all: -r requirements/browser.txt
UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}" "$environment/bin/uv" pip install --quiet --python "$environment/bin/python" "$@" ||
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
cp requirements/browser.txt "$environment/threadkeep-browser"
