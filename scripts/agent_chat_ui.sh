#!/bin/sh
# Builds agent-chat-ui, a template of the npm package create-agent-chat-app, in .agent-chat-ui, if npm and Chromium are installed.
set -eu
cd "$(dirname "$0")/.."
version=0.1.6
if ! command -v npm >/dev/null || ! command -v chromium >/dev/null; then
    echo "setup: no npm or no Chromium on this machine: the tests with agent-chat-ui are skipped." >&2
    exit 0
fi
sh scripts/browser.sh
[ "$(cat .agent-chat-ui/ready 2>/dev/null)" = "$version" ] && exit 0
rm -rf .agent-chat-ui
mkdir .agent-chat-ui
cd .agent-chat-ui
set -- --no-package-lock --no-audit --no-fund --loglevel error
# Its dependencies have no lock: if a new version does not build, the service is not the cause.
if npm install --prefix . --ignore-scripts "$@" "create-agent-chat-app@$version" &&
    cp -R node_modules/create-agent-chat-app/templates/vite page && cd page &&
    npm install --legacy-peer-deps "$@" && npx vite build --logLevel error; then
    echo "$version" >../ready
else
    echo "setup: agent-chat-ui could not be built: the tests with it are skipped." >&2
fi
