#!/usr/bin/env bash
# From a fresh machine to predictions: installs mmpola, generates a data set of shapes, pretrains a backbone on single
# shapes, trains a small Mask R-CNN with it, evaluates it and draws its predictions.
#   bash tools/quickstart.sh
# Safe to run again: finished steps are skipped, an interrupted training resumes from its last epoch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly PRETRAINING=configs/imagenet_pola_swin_shapes.py CONFIG=configs/mask_rcnn_pola_swin_shapes.py
readonly DATA=data/shapes WORK=work_dirs/quickstart WEIGHTS=checkpoints/pola_swin_shapes.pth
readonly VENV_PYTHON=.venv/bin/python  # PYTHON is the installer's to read
# Shortens a training line: without the logger's prefix and the components of the loss.
readonly SHORTER='s/^.* - INFO - (Epoch.train. *\[.*\]).* (eta: [^ ]*).* (loss: [^ ]*).*$/\1  \2  \3/; s/^.* - INFO - (Epoch.val.*top1: [^ ]*).*/\1/'

if [ $# -gt 0 ]; then
    echo "usage: bash tools/quickstart.sh   (no arguments; the top of the file says what it does)" >&2
    exit 2
fi

step() { printf '\n[quickstart] %s\n' "$*"; }

# The newest checkpoint of a work dir, which may have been moved since the path was recorded.
last_checkpoint() { echo "$1/$(basename "$(cat "$1/last_checkpoint")")"; }

# Runs a command with its output in a log; shows the lines that match a pattern, and the log's end if it fails.
logged() {
    local log=$1 pattern=$2
    shift 2
    # pipefail: the status is the command's own, also if grep finds nothing
    if ! "$@" 2>&1 | tee -a "$log" | { grep --line-buffered -E "$pattern" || true; } | sed -u -E "$SHORTER"; then
        tail -n 20 "$log" >&2
        echo "[quickstart] failed: $*; the whole log is $log" >&2
        exit 1
    fi
}

bash tools/install.sh
started=$SECONDS
mkdir -p "$WORK" checkpoints

step "1/6 generating shapes in $DATA"
"$VENV_PYTHON" -m mmpola.shapes "$DATA" --images 600

step '2/6 pretraining a small Pola-Swin on the generated classes (a minute on two CPU cores)'
logged "$WORK/pretrain.log" 'Epoch\(train\)|Epoch\(val\).*top1|resumed epoch|finished' \
    "$VENV_PYTHON" tools/train.py "$PRETRAINING" --work-dir "$WORK/pretrain" --resume
"$VENV_PYTHON" tools/convert_checkpoint.py "$(last_checkpoint "$WORK/pretrain")" "$WEIGHTS" --backbone-only --force

step '3/6 training a Mask R-CNN on that backbone (8 to 11 minutes)'
logged "$WORK/train.log" 'Epoch\(train\)|resumed epoch|finished' \
    "$VENV_PYTHON" tools/train.py "$CONFIG" --work-dir "$WORK" --resume
checkpoint=$(last_checkpoint "$WORK")

step '4/6 for comparison, its first epoch from random weights (a minute)'
logged "$WORK/random.log" 'Epoch\(train\)|resumed epoch|finished' "$VENV_PYTHON" tools/train.py "$CONFIG" \
    --work-dir "$WORK/random" --resume --cfg-options model.backbone.init_cfg=None train_cfg.max_epochs=1

if [ "$WORK/predictions.png" -nt "$checkpoint" ]; then
    step '5/6 and 6/6 this checkpoint has been evaluated already'
else
    step '5/6 evaluating on held-out scenes, drawing predictions next to the ground truth (half a minute)'
    rm -rf "$WORK/predictions"
    logged "$WORK/test.log" 'Evaluating|Average' \
        "$VENV_PYTHON" tools/test.py "$CONFIG" "$checkpoint" --work-dir "$WORK" --show-dir "$WORK/predictions"
    step '6/6 a sheet of the first predictions'
    "$VENV_PYTHON" tools/dev/contact_sheet.py "$WORK/predictions" "$WORK/predictions.png"
fi

# The mean loss of the first epoch's training lines in a log.
first_epoch_loss() {
    sed -n -E 's/.*Epoch\(train\) +\[1\].* loss: ([0-9.]+).*/\1/p' "$1" | awk '{sum += $1} END {if (NR) printf "%.2f", sum / NR; else printf "unknown"}'
}

cat <<END

[quickstart] done, $((SECONDS - started)) s after installation
  mask AP50 on held-out scenes  $(grep -oE 'coco/segm_mAP_50: [0-9.]+' "$WORK/test.log" | tail -n 1 | cut -d ' ' -f 2)   (expected: at least 0.5)
  effect of pretraining         loss over the first epoch $(first_epoch_loss "$WORK/train.log"), from random weights $(first_epoch_loss "$WORK/random.log")
  checkpoint                    $checkpoint
  all predictions               $WORK/predictions/
  the first of them             $WORK/predictions.png   (left: ground truth, right: prediction)
END
