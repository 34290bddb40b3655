#!/usr/bin/env bash
# From a fresh machine to predictions: installs mmpola, generates a data set of shapes, trains a small Mask R-CNN,
# evaluates it and draws its predictions.
#   bash tools/quickstart.sh
# Safe to run again: finished steps are skipped, an interrupted training run resumes from its last epoch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly CONFIG=configs/mask_rcnn_pola_swin_shapes.py DATA=data/shapes WORK=work_dirs/quickstart
readonly VENV_PYTHON=.venv/bin/python  # PYTHON is the installer's to read
# Shortens a line of the training log: drops the logger's prefix and the components of the loss.
readonly SHORTER='s/^.* - INFO - (Epoch.train. *\[.*\]).* (eta: [^ ]*).* (loss: [^ ]*).*$/\1  \2  \3/'

if [ $# -gt 0 ]; then
    echo "usage: bash tools/quickstart.sh   (no arguments; the top of the file says what it does)" >&2
    exit 2
fi

step() { printf '\n[quickstart] %s\n' "$*"; }

# Runs a command with its output in a log; shows the lines that match a pattern, and the log's end if it fails.
logged() {
    local log=$1 pattern=$2 status=0 reason
    shift 2
    # pipefail: the status is the command's own, also if grep finds nothing. Ctrl-C must not end the pipe before the
    # command has saved its state.
    "$@" 2>&1 | (
        trap '' INT TERM
        tee -a "$log" | { grep --line-buffered -E "$pattern|: stopped in " || true; } | sed -u -E "$SHORTER"
    ) || status=$?
    [ "$status" -eq 0 ] && return
    if tail -n 60 "$log" | grep -q ': stopped in '; then
        echo '[quickstart] stopped. Run the quick start again to resume.' >&2
        exit 130
    fi
    tail -n 20 "$log" >&2
    reason="exit status $status"
    if [ "$status" -eq 137 ] || tail -n 20 "$log" | grep -q SIGKILL; then
        reason='killed, as the system does when memory runs out'
    fi
    printf '[quickstart] failed (%s): %s\nThe whole log is %s. Run the quick start again to resume.\n' \
        "$reason" "$*" "$log" >&2
    exit 1
}

bash tools/install.sh
started=$SECONDS
mkdir -p "$WORK"

step "1/4 generating shapes in $DATA"
"$VENV_PYTHON" -m mmpola.openmmlab.shapes "$DATA" --images 600

step '2/4 training a Mask R-CNN with a small Pola-Swin (7 minutes on two CPU cores)'
# Steps of two small images gain nothing from a second thread; two processes with an image each halve the time.
processes=$("$VENV_PYTHON" -c 'import torch
from mmpola.command import usable_cores
print(1 if torch.cuda.is_available() or usable_cores() < 2 else 2)')
logged "$WORK/train.log" 'Epoch\(train\)|^--resume: |^(model|steps|first batch|first step) |^ *(epoch|[0-9]+)  ' \
    "$VENV_PYTHON" -m torch.distributed.run --standalone --nproc-per-node="$processes" \
    tools/train.py "$CONFIG" --launcher pytorch --work-dir "$WORK" --resume \
    --cfg-options train_dataloader.batch_size=$((2 / processes))
checkpoint=$WORK/$(basename "$(cat "$WORK/last_checkpoint")")  # the work dir may have been moved since

if [ "$WORK/predictions.png" -nt "$checkpoint" ]; then
    step '3/4 and 4/4 this checkpoint has been evaluated already'
else
    step '3/4 evaluating on held-out scenes'
    logged "$WORK/test.log" 'Evaluating|Average' "$VENV_PYTHON" tools/test.py "$CONFIG" "$checkpoint" --work-dir "$WORK"
    step '4/4 drawing predictions for the held-out scenes'
    logged "$WORK/predict.log" 'images done' "$VENV_PYTHON" tools/predict.py "$CONFIG" "$checkpoint" \
        "$DATA/coco/val2017" --out "$WORK/predictions" --score-thr 0.5 --overwrite
    "$VENV_PYTHON" tools/dev/contact_sheet.py "$WORK/predictions/vis" "$WORK/predictions.png"
fi

cat <<END

[quickstart] done, $((SECONDS - started)) s after installation
  mask AP50 on held-out scenes  $(grep -oE 'coco/segm_mAP_50: [0-9.]+' "$WORK/test.log" | tail -n 1 | cut -d ' ' -f 2)   (expected: at least 0.7)
  checkpoint                    $checkpoint
  all predictions               $WORK/predictions/   (drawn with a score above 0.5; all of them as JSON)
  the first of them             $WORK/predictions.png
END
