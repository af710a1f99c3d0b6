#!/bin/sh
# Prints a Python for Threadkeep: any from 3.12 on, or exactly the given version (`find-python.sh 3.13`).
# Candidates are executed, because a pyenv shim is on PATH even if its Python is not installed.
set -u
asked=${1:-}

fits() { # fits CANDIDATE MODULES: is it the right version, and has it these modules?
    "$1" - "$asked" "$2" <<'PYTHON' >/dev/null 2>&1
import sys
asked, modules = sys.argv[1:]
found = ".".join(map(str, sys.version_info[:2]))
if sys.version_info < (3, 12) or (asked and asked != found):
    sys.exit(1)
for module in modules.split():
    __import__(module)
PYTHON
}

candidates() { # one path a line: PATH first, then where pyenv and uv keep theirs
    for name in "python${asked:-3.12}" python3.12 python3.13 python3.14 python3 python; do
        (
            IFS=:
            for folder in $PATH; do
                [ -x "$folder/$name" ] && printf '%s\n' "$folder/$name"
            done
        )
    done
    home=${HOME:-/}
    for path in \
        "${PYENV_ROOT:-$home/.pyenv}"/versions/3.1[2-9]*/bin/python3 \
        "${XDG_DATA_HOME:-$home/.local/share}"/uv/python/cpython-3.1[2-9]*/bin/python3; do
        [ -x "$path" ] && printf '%s\n' "$path"
    done
    # --system excludes the project's own .venv, which is to be created.
    uv python find --system --no-project ">=3.12" </dev/null 2>/dev/null
}

if [ -n "${PYTHON:-}" ] && [ -z "$asked" ]; then
    fits "$PYTHON" "" && command -v "$PYTHON" && exit 0
    echo "setup: PYTHON=$PYTHON is not a Python 3.12 or newer that runs here; name one that is, or leave PYTHON out." >&2
    exit 1
fi

# Prefer a Python with the module venv (Debian's needs python3-venv).
for modules in "venv ensurepip" ""; do
    found=$(candidates | while read -r candidate; do
        fits "$candidate" "$modules" && printf '%s\n' "$candidate" && break
    done)
    [ -n "$found" ] && printf '%s\n' "$found" && exit 0
done
exit 1
