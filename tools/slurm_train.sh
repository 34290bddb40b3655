#!/usr/bin/env bash
# Trains under Slurm, one task per GPU.
#   bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]
# Environment: GPUS (8), GPUS_PER_NODE (8), CPUS_PER_TASK (5), SRUN_ARGS.
set -euo pipefail
if [ $# -lt 4 ]; then
    echo "usage: bash tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [arguments of tools/train.py]" >&2
    exit 2
fi
partition=$1 job=$2 config=$3 work_dir=$4
shift 4
read -r -a extra <<<"${SRUN_ARGS:-}"
exec srun -p "$partition" \
    --job-name="$job" \
    --gres=gpu:"${GPUS_PER_NODE:-8}" \
    --ntasks="${GPUS:-8}" \
    --ntasks-per-node="${GPUS_PER_NODE:-8}" \
    --cpus-per-task="${CPUS_PER_TASK:-5}" \
    --kill-on-bad-exit=1 \
    "${extra[@]}" \
    python -u "$(dirname "${BASH_SOURCE[0]}")/train.py" "$config" --work-dir "$work_dir" --launcher slurm "$@"
