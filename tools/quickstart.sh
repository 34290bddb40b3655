#!/usr/bin/env bash
# From a fresh machine to predictions: installs mmpola, generates a data set of shapes, trains a small Mask R-CNN from
# random weights, evaluates it and draws its predictions.
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
    # pipefail: the status is the command's own, also if grep finds nothing
    "$@" 2>&1 | tee -a "$log" | { grep --line-buffered -E "$pattern" || true; } | sed -u -E "$SHORTER" || status=$?
    [ "$status" -eq 0 ] && return
    reason="exit status $status"
    [ "$status" -ne 137 ] || reason='killed, as the system does when memory runs out'
    tail -n 20 "$log" >&2
    printf '[quickstart] failed (%s): %s\nThe whole log is %s. Run the quick start again to resume.\n' \
        "$reason" "$*" "$log" >&2
    exit 1
}

bash tools/install.sh
started=$SECONDS
mkdir -p "$WORK"

step "1/4 generating shapes in $DATA"
"$VENV_PYTHON" -m mmpola.shapes "$DATA" --images 600

step '2/4 training a Mask R-CNN with a small Pola-Swin (6 to 8 minutes on two CPU cores)'
logged "$WORK/train.log" 'Epoch\(train\)|resumed epoch|finished' \
    "$VENV_PYTHON" tools/train.py "$CONFIG" --work-dir "$WORK" --resume
checkpoint=$WORK/$(basename "$(cat "$WORK/last_checkpoint")")  # the work dir may have been moved since

if [ "$WORK/predictions.png" -nt "$checkpoint" ]; then
    step '3/4 and 4/4 this checkpoint has been evaluated already'
else
    step '3/4 evaluating on held-out scenes'
    logged "$WORK/test.log" 'Evaluating|Average' "$VENV_PYTHON" tools/test.py "$CONFIG" "$checkpoint" --work-dir "$WORK"
    step '4/4 drawing predictions for the held-out scenes'
    logged "$WORK/predict.log" 'images done' "$VENV_PYTHON" tools/predict.py "$CONFIG" "$checkpoint" \
        "$DATA/coco/val2017" --out "$WORK/predictions" --score-thr 0.5 --overwrite
    "$VENV_PYTHON" tools/dev/contact_sheet.py "$WORK/predictions" "$WORK/predictions.png" \
        --images 12 --columns 4 --width 384
fi

cat <<END

[quickstart] done, $((SECONDS - started)) s after installation
  mask AP50 on held-out scenes  $(grep -oE 'coco/segm_mAP_50: [0-9.]+' "$WORK/test.log" | tail -n 1 | cut -d ' ' -f 2)   (expected: at least 0.7)
  checkpoint                    $checkpoint
  all predictions               $WORK/predictions/   (scores of at least 0.5; also as JSON)
  the first of them             $WORK/predictions.png
END
