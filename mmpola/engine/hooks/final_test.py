"""Evaluates the best checkpoint on the test data when training ends."""

from __future__ import annotations

from typing import Any

from mmengine.dist import barrier
from mmengine.hooks import Hook

from mmpola.messages import info


class FinalTestHook(Hook):
    """After training, evaluates the checkpoint that was best in validation on the test data.

    The checkpoint hook's `save_best` decides which one that is; without one, nothing is evaluated.
    """

    priority = 'LOWEST'  # after the last checkpoint

    def after_train(self, runner: Any) -> None:
        """Evaluate; the runner's model keeps the weights of the best checkpoint."""
        best = runner.message_hub.runtime_info.get('best_ckpt')
        if best is None:
            info('the test data are not evaluated: no checkpoint was the best in a validation')
            return
        barrier()  # rank 0 may still be writing
        info(f'evaluating {best} on the test data')
        runner.load_checkpoint(best)
        runner.test_loop.run()
