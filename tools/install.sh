#!/usr/bin/env bash
# Creates .venv and installs mmpola with the tested versions of PyTorch and OpenMMLab; nothing is compiled. Safe to run
# again: it does nothing if .venv is up to date, and continues after an interruption.
#   bash tools/install.sh [--dev]              --dev adds the tools of requirements-dev.txt
#   PYTHON=python3.12 bash tools/install.sh    picks the interpreter (default: python3.11, else python3)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '[install] %s\n' "$*"; }
die() { printf '[install] error: %s\n' "$*" >&2; exit 1; }
pip_install() {
    .venv/bin/python -m pip install --disable-pip-version-check "$@" ||
        die 'pip failed, see above; after a network error run the same command again'
}

requirements=(-r requirements.txt)
case "${1:-}" in
    '') ;;
    --dev) requirements+=(-r requirements-dev.txt) ;;
    *) die "expected --dev or nothing, got '$1'" ;;
esac

stamp=.venv/mmpola-installed${1:-}
fingerprint=$(cat requirements*.txt pyproject.toml setup.py tools/install.sh | sha256sum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$fingerprint" ]; then
    say 'up to date (.venv)'
    exit
fi

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then # none yet, or an interrupted one
    candidates=(python3.11 python3 python3.13 python3.12 python3.10)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi # its path may have spaces
    for python in "${candidates[@]}" none; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then break; fi
    done
    [ "$python" != none ] || die 'no Python 3.10 or newer found; name one: PYTHON=/path/to/python bash tools/install.sh'
    say "creating .venv with $("$python" --version)"
    "$python" -m venv .venv || die "Python's venv module failed; Debian and Ubuntu: apt-get install python3-venv"
fi
say 'installing PyTorch, OpenMMLab and mmpola: 6 GB, two to four minutes'
pip_install "${requirements[@]}"
pip_install --no-deps --editable .
.venv/bin/python -m mmpola operators || die "mmcv's operators cannot be put in place; the line above says why"
.venv/bin/python -m mmpola --openmmlab || die 'the installation does not work; the report above says why'
printf '%s\n' "$fingerprint" >"$stamp"
say 'done; the command mmpola is there after: source .venv/bin/activate'
