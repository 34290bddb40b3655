#!/usr/bin/env bash
# Installs what the tests need and runs them.
#   bash tools/run_tests.sh [arguments of pytest]
# MMPOLA_REAL_DATA=FOLDER runs the tests on real COCO, ADE20K and ImageNet samples too; without it they say they skip.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash tools/install.sh --dev
# One thread per test process: OpenMP threads of several processes on few cores wait for each other.
workers=${PYTEST_WORKERS:-$(env -u OMP_NUM_THREADS nproc)} # nproc would count OMP_NUM_THREADS
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec .venv/bin/python -m pytest -n "$workers" "$@"
