#!/bin/sh
# Installs the JavaScript clients of tests/foreign into .javascript, if npm is installed. There is no package lock, because
# it would record download addresses.
set -eu
cd "$(dirname "$0")/.."
wanted=tests/foreign/javascript/package.json
command -v npm >/dev/null || {
    echo "setup: no npm on this machine: the tests with JavaScript clients are skipped." >&2
    exit 0
}
[ -f .javascript/ready ] && cmp -s "$wanted" .javascript/package.json && exit 0
rm -rf .javascript
mkdir .javascript
cp "$wanted" .javascript/package.json
npm install --prefix .javascript --no-package-lock --no-audit --no-fund --loglevel error
touch .javascript/ready
