#!/usr/bin/env bash
# Evaluates a checkpoint on several GPUs, or on several CPU processes where there is no GPU.
#   bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [arguments of tools/test.py]
# On several machines, set on each: NNODES, NODE_RANK, MASTER_ADDR, PORT.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: bash tools/dist_test.sh CONFIG CHECKPOINT GPUS [arguments of tools/test.py]" >&2
    exit 2
fi
config=$1
checkpoint=$2
gpus=$3
shift 3
exec bash "$(dirname "${BASH_SOURCE[0]}")/dist_run.sh" "$gpus" test.py "$config" "$checkpoint" "$@"
