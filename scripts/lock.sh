#!/bin/sh
# Compiles requirements/ from pyproject.toml: `lock.sh` changes only what pyproject.toml requires, `lock.sh --upgrade` all.
#
# Begins with the largest set; each smaller set gets the versions of the larger one. The locks have hashes for every
# platform, and no download addresses, which depend on the machine.
set -eu
cd "$(dirname "$0")/.."
environment=${VENV:-.venv}
for uv in "$environment/bin/uv" uv ""; do
    [ -n "$uv" ] && "$uv" --version >/dev/null 2>&1 && break
done
[ -n "$uv" ] || { echo "lock: no uv; install it, or make the environment anew without one: it is then put there." >&2; exit 1; }
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"

compile() { # compile SET OPTIONS: one file of requirements/
    name=$1
    shift
    echo "lock: requirements/$name.txt" >&2
    "$uv" pip compile --quiet --universal --python-version 3.12 --generate-hashes --custom-compile-command "make lock" \
        --output-file "requirements/$name.txt" "$@"
}

compile bench "$@" pyproject.toml --extra server --extra meaning --group build --group dev --group bench
compile dev pyproject.toml --extra server --group build --group dev --constraint requirements/bench.txt
compile server pyproject.toml --extra server --group build --constraint requirements/dev.txt
compile browser --group browser --constraint requirements/dev.txt
compile base pyproject.toml --constraint requirements/server.txt
# It requires a package without a wheel, which only its detection of blocking calls needs.
echo "forbiddenfruit; python_version < '3'" | compile deepagents "$@" pyproject.toml --group build --group deepagents --override -
compile adapters "$@" pyproject.toml --extra google-adk --extra llama-index --extra postgres --extra pydantic-ai --group build --group adapters
# It requires a version of the certificates that some indexes do not have yet.
echo "certifi>=2025.1.31" | compile graphiti "$@" pyproject.toml --group build --group graphiti --override -
# The oldest versions that pyproject.toml allows (`make lowest`); packages that they require have their newest versions.
compile lowest "$@" --resolution lowest-direct pyproject.toml --extra server --group build --group dev
compile sbom "$@" --group sbom
compile uv "$@" --group installer
"$environment/bin/python" scripts/check_lock.py --write
