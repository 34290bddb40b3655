#!/usr/bin/env bash
# Installs what the tests need and runs them in two jobs:
#   1. "kernels in Triton's interpreter": the tests marked `kernels`, on the CPU
#   2. "tests": all others, and on a machine with a GPU the kernels on that GPU too
#
#   bash tools/run_tests.sh                         both
#   bash tools/run_tests.sh --fast                  operators, layers, names and weights: under a minute on two quiet cores
#   bash tools/run_tests.sh --units                 the second job without tests/journeys/, which has what takes long
#   bash tools/run_tests.sh --kernels               only the first job
#   bash tools/run_tests.sh [arguments of pytest]   only the second job, with these arguments
# MMPOLA_REAL_DATA=FOLDER also runs the tests on real COCO, ADE20K and ImageNet samples, which are skipped without it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

FAST=(tests/ops tests/kernels tests/layers tests/checkpoint tests/backbones/test_weight_names.py)
FAST+=(tests/backbones/test_arguments.py tests/backbones/test_golden.py)

case "${1:-}" in
    -h | --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' tools/run_tests.sh
        exit
        ;;
esac
bash tools/install.sh --dev
# One thread per test process: OpenMP threads of several processes on few cores wait for each other.
workers=${PYTEST_WORKERS:-$(env -u OMP_NUM_THREADS nproc)} # nproc would count OMP_NUM_THREADS
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

# A file's tests stay in one process, so that its training runs are shared; the kernels' have none.
run() { .venv/bin/python -m pytest -n "$workers" --dist loadfile --no-loadscope-reorder "$@"; }

kernels() {
    echo "[tests] job 1 of 2: kernels in Triton's interpreter"
    # NumPy, which interprets the kernels, warns of log2(0) and overflows; they are intended.
    TRITON_INTERPRET=1 run -W ignore::RuntimeWarning -m kernels --dist worksteal tests/ops tests/kernels
}

status=0
case "${1:-}" in
    --fast) run -m "not kernels and not slow" "${FAST[@]}" "${@:2}"; exit ;;
    --units) run -m "not kernels" tests --ignore tests/journeys "${@:2}"; exit ;;
    --kernels) kernels; exit ;;
    '')
        kernels || status=$?
        if [ "$status" -ne 0 ]; then
            echo "[tests] job 1 of 2 failed; this script will too" >&2
        fi
        echo "[tests] job 2 of 2: tests"
        ;;
esac
selection=(-m "not kernels")
if .venv/bin/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    selection=()
fi
run ${selection[@]+"${selection[@]}"} "$@" || status=$?
exit "$status"
