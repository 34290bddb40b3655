#!/usr/bin/env bash
# Creates .venv and installs mmpola with the tested OpenMMLab versions. Safe to run again: finished steps are skipped.
#   bash tools/install.sh [--dev] [--forks]    --dev adds the tools of requirements-dev.txt, --forks takes the maintained
#                                              forks of requirements-forks.txt instead of OpenMMLab
#   PYTHON=python3.12 bash tools/install.sh    picks the interpreter (default: python3.11, else python3)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv LOG=.venv/install.log STAMP=.venv/mmpola-installed
readonly NEEDED_GB=12
readonly OPENMMLAB='^mm(engine|cv|det|segmentation)=='

say() { printf '[install] %s\n' "$*"; }
die() { printf '[install] error: %s\n' "$*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13 python3.10}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "no Python 3.10 or newer found (tried ${PYTHON:-python3.11, python3, python3.12, python3.13, python3.10}); install one, or name it: PYTHON=/path/to/python bash tools/install.sh"
}

# Runs a command with its output in the log; shows elapsed time and the build's [n/m] lines, on failure the log's end.
logged() {
    local what=$1 start=$SECONDS pid step next=60
    shift
    echo "== $what: $*" >>"$LOG"
    "$@" >>"$LOG" 2>&1 &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        if [ -t 1 ]; then
            step=$(tail -c 4000 "$LOG" | grep -oE '^ *\[[0-9]+/[0-9]+\]' | tail -n 1 || true)
            printf '\r[install] %s … %d s %s   ' "$what" $((SECONDS - start)) "$step"
        elif ((SECONDS - start >= next)); then
            say "$what … $((SECONDS - start)) s"
            next=$((SECONDS - start + 60))
        fi
        sleep 1
    done
    if [ -t 1 ]; then printf '\r'; fi
    if wait "$pid"; then
        say "$what: done in $((SECONDS - start)) s            "
    else
        tail -n 25 "$LOG" >&2
        die "$what failed; the whole log is $LOG. After network errors run the same command again; finished steps are kept"
    fi
}

check_machine() {
    command -v "${CXX:-g++}" >/dev/null || die "no C++ compiler (${CXX:-g++}); mmcv is built from source. Debian/Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++"
    local free_gb
    free_gb=$(($(df -Pk . | awk 'NR == 2 {print $4}') / 1024 / 1024))
    if [ ! -e "$VENV/lib" ] && [ "$free_gb" -lt "$NEEDED_GB" ]; then
        die "only ${free_gb} GB free here, ${NEEDED_GB} GB are needed (torch's CUDA build is most of it); free some space or clone elsewhere"
    fi
}

install_mmcv() {
    if "$VENV/bin/python" -c 'import mmcv.ops' 2>/dev/null; then return; fi
    export MMCV_WITH_OPS=1 CFLAGS="${CFLAGS:--g0}" MAX_JOBS="${MAX_JOBS:-$(env -u OMP_NUM_THREADS nproc)}"
    local operators='CPU operators'
    if command -v nvcc >/dev/null && "$VENV/bin/python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'; then
        export FORCE_CUDA=1
        operators='CPU and CUDA operators'
    fi
    say "mmcv is built from source with $operators: 6 to 12 minutes on two cores"
    local options=(--no-build-isolation --no-deps -v)
    local package
    package=$(openmmlab mmcv)
    logged 'build mmcv' pip_install "${options[@]}" "$package"
    if ! "$VENV/bin/python" -c 'import mmcv.ops' 2>>"$LOG"; then
        say 'the cached mmcv was built for another torch; building it again'
        logged 'rebuild mmcv' pip_install "${options[@]}" --force-reinstall --no-cache-dir --no-binary "${package%%=*}" "$package"
    fi
    "$VENV/bin/python" -c 'import mmcv.ops' || die "mmcv's operators do not load; see $LOG. A missing libGL.so.1: apt-get install libgl1 libglib2.0-0"
}

pip_install() { "$VENV/bin/python" -m pip install --disable-pip-version-check "$@"; }

requirement() { grep -E "^$1[=<>]" requirements.txt; } # the pinned lines of a package

openmmlab() { grep -E "^(onedl-)?$1==" "$SET"; } # the pinned line of a package of OpenMMLab or of its forks

# OpenMMLab and its forks are distributions of the same modules and would overwrite each other's files.
refuse_both() {
    local others='^onedl-mm' found
    if [ "$SET" = requirements-forks.txt ]; then others=$OPENMMLAB; fi
    found=$("$VENV/bin/python" -m pip freeze --disable-pip-version-check | grep -E "$others" | paste -sd ' ' || true)
    if [ -n "$found" ]; then
        die "expected an environment without ${found}, whose modules the packages of $SET replace; remove $VENV and run this again"
    fi
}

main() {
    local dev='' forks='' argument
    SET=requirements.txt
    for argument; do
        case "$argument" in
            --dev) dev=-dev ;;
            --forks) forks=-forks SET=requirements-forks.txt ;;
            *) die "unknown argument '$argument'; usage: bash tools/install.sh [--dev] [--forks]" ;;
        esac
    done
    local python fingerprint
    python=$(find_python)
    fingerprint=$(cat requirements*.txt pyproject.toml setup.py tools/install.sh | sha256sum)
    local stamp=$STAMP$forks$dev
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$fingerprint" ]; then
        say "up to date ($VENV)"
        return
    fi
    check_machine
    if [ ! -x "$VENV/bin/python" ]; then
        say "creating $VENV with $("$python" --version)"
        "$python" -m venv "$VENV" || die "python's venv module failed; Debian/Ubuntu: apt-get install python3-venv"
    fi
    refuse_both
    local numpy
    mapfile -t numpy < <(requirement numpy)
    logged 'install torch and build tools' pip_install "$(requirement torch)" "$(requirement torchvision)" "${numpy[@]}" \
        "$(requirement setuptools)" wheel ninja psutil
    logged 'install OpenMMLab base' pip_install "$(openmmlab mmengine)" "$(requirement opencv-python)" "${numpy[@]}"
    install_mmcv
    { grep -vE "$OPENMMLAB" requirements.txt && grep -E '^(onedl-)?mm' "$SET"; } >"$VENV/requirements.txt"
    logged 'install the rest' pip_install -r "$VENV/requirements.txt"
    if [ -n "$dev" ]; then logged 'install test tools' pip_install -r requirements-dev.txt; fi
    logged 'install mmpola' pip_install --no-deps --no-build-isolation --editable .
    "$VENV/bin/python" -m mmpola --openmmlab || die 'the installation does not work; the table above names the fixes'
    printf '%s\n' "$fingerprint" >"$stamp"
}

main "$@"
