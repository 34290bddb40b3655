#!/usr/bin/env bash
# Trains on several GPUs, or on several CPU processes where there is no GPU.
#   bash tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]
# On several machines, set on each: NNODES, NODE_RANK, MASTER_ADDR, PORT.
set -euo pipefail
if [ $# -lt 2 ]; then
    echo "usage: bash tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]" >&2
    exit 2
fi
config=$1
gpus=$2
shift 2
exec bash "$(dirname "${BASH_SOURCE[0]}")/dist_run.sh" "$gpus" train.py "$config" "$@"
