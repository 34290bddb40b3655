#!/usr/bin/env bash
# Starts a script of this folder in one process per GPU: dist_run.sh GPUS SCRIPT ARGUMENTS…
# Environment: NNODES (1), NODE_RANK (0), MASTER_ADDR (127.0.0.1), PORT (29500).
set -euo pipefail
tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$tools/../.venv/bin/python
if [ -n "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] || [ ! -x "$python" ]; then python=python; fi
gpus=$1
script=$2
shift 2
# torchrun passes on only the signals that it handles; Slurm may send SIGUSR1.
export PET_SIGNALS_TO_HANDLE="${PET_SIGNALS_TO_HANDLE:-SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1}"
if [ -z "${OMP_NUM_THREADS:-}" ]; then
    # torchrun would set 1, however many cores there are for each process.
    ask='from mmpola.command import threads_of_process; print(threads_of_process())'
    OMP_NUM_THREADS=$(LOCAL_WORLD_SIZE=$gpus "$python" -c "$ask")
    export OMP_NUM_THREADS
fi
exec "$python" -m torch.distributed.run \
    --nnodes="${NNODES:-1}" \
    --node-rank="${NODE_RANK:-0}" \
    --master-addr="${MASTER_ADDR:-127.0.0.1}" \
    --master-port="${PORT:-29500}" \
    --nproc-per-node="$gpus" \
    "$tools/$script" "$@" --launcher pytorch
