#!/bin/sh
# Updates the environment in .venv to one of the locked sets: `setup.sh server` (to run), `dev` (to develop) or `bench`; or
# another environment (VENV) to one of the separate sets `deepagents`, `graphiti`, `adapters` and `lowest`.
#
# All packages come from requirements/, with hashes; nothing is installed outside the environment. Each set contains the
# previous ones, so an environment with a larger set is not changed. If nothing changed, this returns at once.
set -eu
cd "$(dirname "$0")/.."
wanted=${1:-dev}
environment=${VENV:-.venv}
python=$environment/bin/python
stamp=$environment/threadkeep-setup
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Company proxies use certificates that only the system trusts.
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

case $wanted in
server) enough="server dev bench" ;;
dev) enough="dev bench" ;;
bench) enough="bench" ;;
deepagents) enough="deepagents" ;;
graphiti) enough="graphiti" ;;
adapters) enough="adapters" ;;
lowest) enough="lowest" ;;
*) fail "there is no set '$wanted'; it is server, dev, bench, deepagents, graphiti, adapters or lowest." ;;
esac

inputs() { # what the set is made from, as one text
    printf '%s\n' "$1"
    cat "requirements/$1.txt" pyproject.toml src/threadkeep/version.py
}

runs() { # is the environment's Python there, new enough, and of the version that PYTHON asks for, if it is set?
    version='import sys; print(*sys.version_info[:2], sep="."); sys.exit(sys.version_info < (3, 12))'
    has=$("$python" -c "$version" 2>/dev/null) || return 1
    [ -z "${PYTHON:-}" ] || [ "$has" = "$("$PYTHON" -c "$version" 2>/dev/null)" ]
}

is_ready() {
    [ -f "$stamp" ] && runs || return 1
    for richer in $enough; do
        [ "$(inputs "$richer")" = "$(cat "$stamp")" ] && return 0
    done
    return 1
}

find_uv() { # sets uv to one that runs, or to nothing
    for uv in "$(command -v uv)" "$environment/bin/uv" .venv/bin/uv ""; do
        [ -n "$uv" ] && "$uv" --version >/dev/null 2>&1 && return 0
    done
    return 1
}

use_environment() { # the one that is there, if it runs; else a new one
    runs && return 0
    [ ! -e "$environment" ] || [ -f "$environment/pyvenv.cfg" ] ||
        fail "$environment is there and is no Python environment; move it away, or set VENV to another name."
    base=$(sh scripts/find-python.sh) || {
        [ -z "${PYTHON:-}" ] || exit 1
        fail "no Python 3.12 or newer was found. Install one (python.org, your system's packages, pyenv, or" \
            "'uv python install 3.12'), or say where it is: make PYTHON=/path/to/python3.12"
    }
    say "making $environment with $base ($("$base" --version 2>&1))"
    rm -rf "$environment"
    if find_uv; then
        "$uv" venv --quiet --python "$base" "$environment"
        return 0
    fi
    "$base" -m venv "$environment" || {
        rm -rf "$environment"
        fail "$base cannot make environments. Install its venv package (Debian, Ubuntu: python3-venv), or uv."
    }
}

need_pip() {
    "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1 ||
        fail "neither uv nor pip is in $environment, and its Python brings no pip. Install uv, or remove $environment."
}

pip_install() {
    need_pip
    "$python" -m pip install --no-deps "$@"
}

need_uv() {
    find_uv && return 0
    say "no uv on this machine: installing the pinned one into $environment"
    pip_install --require-hashes --only-binary :all: -r requirements/uv.txt || true
    find_uv || say "uv is not to be had here; pip does its work, slower"
}

install_set() {
    say "installing $(grep -c '^[a-z0-9].*==' "requirements/$wanted.txt") packages from requirements/$wanted.txt"
    if [ -n "$uv" ]; then
        "$uv" pip install --python "$python" --no-deps --require-hashes --only-binary :all: \
            -r "requirements/$wanted.txt" && return 0
        say "uv could not install them; trying pip, with the same hashes"
    fi
    pip_install --require-hashes --only-binary :all: -r "requirements/$wanted.txt" ||
        fail "requirements/$wanted.txt could not be installed; the lines above say why. Run the same command again after."
}

install_project() { # builds with what the set brought: nothing is downloaded here
    say "installing threadkeep itself, editable"
    if [ -n "$uv" ]; then
        "$uv" pip install --quiet --python "$python" --offline --no-deps --no-build-isolation --editable . && return 0
    fi
    pip_install --quiet --no-index --no-build-isolation --editable . || fail "threadkeep itself could not be installed."
}

is_ready && exit 0
use_environment
rm -f "$stamp"
need_uv
install_set
install_project
inputs "$wanted" >"$stamp"
say "ready: $environment has the set '$wanted'"
