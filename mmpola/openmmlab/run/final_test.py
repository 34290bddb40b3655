"""Evaluates the best checkpoint on the test data when training ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import barrier, is_main_process
from mmengine.hooks import Hook

from mmpola.files import write_atomically
from mmpola.messages import info
from mmpola.openmmlab.config.contents import type_name

RESULT = 'final_test.json'
"""In the work dir: the metrics on the test data, and the checkpoint that has them."""


class FinalTestHook(Hook):
    """After training, evaluates the checkpoint that was best in validation on the test data.

    The checkpoint hook's `save_best` decides which one that is; without one, nothing is evaluated.
    A run that is interrupted during this evaluation repeats it when it resumes.
    """

    priority = 'LOWEST'  # after the last checkpoint

    def before_train(self, runner: Any) -> None:
        """Forget the result of an earlier run."""
        if is_main_process():
            Path(runner.work_dir, RESULT).unlink(missing_ok=True)

    def after_train(self, runner: Any) -> None:
        """Evaluate; the runner's model keeps the weights of the best checkpoint."""
        best = runner.message_hub.runtime_info.get('best_ckpt')
        result = {'checkpoint': best}
        if best is None:
            info('the test data are not evaluated: no checkpoint was the best in a validation')
        else:
            barrier()  # rank 0 may still be writing
            info(f'evaluating {best} on the test data')
            runner.load_checkpoint(best)
            result.update(runner.test_loop.run())
        if is_main_process():
            write_atomically(Path(runner.work_dir, RESULT), json.dumps(result, default=float))


def is_test_due(cfg: Config) -> bool:
    """Whether a config has a `FinalTestHook`, and its work dir no result of it."""
    hooks = [*(cfg.get('default_hooks') or {}).values(), *(cfg.get('custom_hooks') or ())]
    tests = any(hook and type_name(hook.get('type')) == 'FinalTestHook' for hook in hooks)
    return tests and not Path(cfg.work_dir, RESULT).exists()
