"""Training through tools/train.py up to MMEngine's Runner: resuming, Ctrl-C, and configs on a CPU."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.runner.checkpoint import CheckpointLoader

from mmpola.engine import train as training
from mmpola.engine.hooks.finite import NonFiniteError
from tests.helpers.resuming import refusal
from tests.helpers.scripts import load


def test_sync_bn_is_replaced_everywhere():
    sync, batch = {'type': 'SyncBN', 'requires_grad': True}, {'type': 'BN'}
    heads = [{'norm_cfg': dict(sync)}, {'convs': {'norm_cfg': dict(sync)}}]
    cfg = Config({'model': {'backbone': {'norm_cfg': batch}, 'heads': heads}})
    assert training._replace_sync_bn(cfg.model) == 2
    assert cfg.model.heads[0].norm_cfg == {'type': 'BN', 'requires_grad': True}
    assert cfg.model.heads[1].convs.norm_cfg.type == 'BN'
    assert training._replace_sync_bn(cfg.model) == 0


def test_a_finished_run_changes_nothing(work, finished_work, tiny_config, monkeypatch, capsys):
    before = {path: path.read_bytes() for path in work.iterdir()}
    command = ['train.py', str(tiny_config), '--work-dir', str(work)]
    monkeypatch.setattr('sys.argv', [*command, '--resume'])
    load('train').main()
    assert capsys.readouterr().out == f'{work}/epoch_2.pth: training is finished: 3 of 3 epochs\n'
    monkeypatch.setattr('sys.argv', command)
    assert refusal(load('train').main).startswith(f'{work}: holds checkpoints that this run would overwrite')
    assert {path: path.read_bytes() for path in work.iterdir()} == before


class RecordingRunner:
    """Replaces MMEngine's Runner: reads the checkpoint as it does, without training."""

    @classmethod
    def from_cfg(cls, cfg):
        runner = cls()
        runner.cfg = cfg
        return runner

    def train(self):
        assert self.cfg.resume
        self.loaded.append(CheckpointLoader.load_checkpoint(self.cfg.load_from))


def test_the_checkpoint_is_read_once(work, trained_work, tiny_config, monkeypatch):
    read, runner = [], type('Runner', (RecordingRunner,), {'loaded': []})
    torch_load = torch.load
    monkeypatch.setattr(torch, 'load', lambda path, **options: read.append(path) or torch_load(path, **options))
    monkeypatch.setattr(training, 'Runner', runner)
    monkeypatch.setattr('sys.argv', ['train.py', str(tiny_config), '--work-dir', str(work), '--resume'])
    load('train').main()
    assert read == [work / 'epoch_2.pth']
    assert runner.loaded[0]['meta']['epoch'] == 2


def test_a_resumed_training_does_not_need_the_pretrained_file(work, trained_work, tiny_config, monkeypatch):
    """MMEngine would load it first, and the checkpoint over it: the file may be gone since the training began."""
    with tiny_config.open('a') as config:
        config.write("model['backbone']['init_cfg'] = dict(_delete_=True, type='Pretrained', checkpoint='none.pth')\n")
    runner = type('Runner', (RecordingRunner,), {'loaded': []})
    started = []
    monkeypatch.setattr(runner, 'from_cfg', classmethod(lambda cls, cfg: started.append(cfg) or RecordingRunner()))
    monkeypatch.setattr(RecordingRunner, 'train', lambda self: None)
    monkeypatch.setattr(training, 'Runner', runner)
    monkeypatch.setattr('sys.argv', ['train.py', str(tiny_config), '--work-dir', str(work), '--resume'])
    load('train').main()
    assert started[0].model.backbone.init_cfg is None


class InterruptedRunner:
    """Replaces MMEngine's Runner: Ctrl-C after an epoch, which is saved if it `saves`."""

    saves = True

    @classmethod
    def from_cfg(cls, cfg):
        runner = cls()
        runner.work_dir = Path(cfg.work_dir)
        return runner

    def train(self):
        if self.saves:
            (self.work_dir / 'epoch_1.pth').touch()
            (self.work_dir / 'last_checkpoint').write_text('epoch_1.pth')
        raise KeyboardInterrupt


@pytest.mark.parametrize('saved', [False, True])
def test_an_interrupted_run_says_what_was_saved(saved, tmp_path, tiny_config, monkeypatch, capsys):
    monkeypatch.setattr(training, 'Runner', InterruptedRunner)
    monkeypatch.setattr(training, 'prepare_process', lambda cfg, checkpoint: None)
    monkeypatch.setattr(InterruptedRunner, 'saves', saved)
    work = tmp_path / 'fresh'
    monkeypatch.setattr('sys.argv', ['train.py', str(tiny_config), '--work-dir', str(work), '--resume'])
    with pytest.raises(SystemExit) as raised:
        load('train').main()
    assert raised.value.code == training.CTRL_C == 130
    printed = capsys.readouterr()
    assert f'{work}: no checkpoint to resume from yet; training starts from the first step\n' in printed.out
    left = f'--resume continues from {work}/epoch_1.pth' if saved else 'nothing was saved yet'
    assert printed.err.splitlines()[-1] == f'interrupted; {left}'


@pytest.mark.parametrize('saved', [False, True])
def test_a_run_that_is_not_finite_ends_with_one_line(saved, tmp_path, tiny_config, monkeypatch):
    work = tmp_path / 'fresh'

    def train(self):
        if saved:
            (work / 'epoch_1.pth').touch()
            (work / 'last_checkpoint').write_text('epoch_1.pth')
        raise NonFiniteError('loss: nan')

    monkeypatch.setattr(training, 'Runner', InterruptedRunner)
    monkeypatch.setattr(InterruptedRunner, 'train', train)
    monkeypatch.setattr(training, 'prepare_process', lambda cfg, checkpoint: None)
    monkeypatch.setattr('sys.argv', ['train.py', str(tiny_config), '--work-dir', str(work)])
    with pytest.raises(SystemExit) as raised:
        load('train').main()
    left = f'{work}/epoch_1.pth is the newest checkpoint and finite' if saved else 'nothing was saved'
    assert raised.value.code == f'error: loss: nan; {left}'  # which exits with status 1


def test_a_work_dir_has_one_training_at_a_time(work, tiny_config, monkeypatch):
    before = {path: path.read_bytes() for path in work.iterdir()}
    during = []

    def train(self):
        during.append(refusal(load('train').main))
        assert before.items() <= {path: path.read_bytes() for path in work.iterdir()}.items()

    monkeypatch.setattr(training, 'Runner', InterruptedRunner)
    monkeypatch.setattr(InterruptedRunner, 'train', train)
    monkeypatch.setattr('sys.argv', ['train.py', str(tiny_config), '--work-dir', str(work), '--overwrite'])
    before.pop(work / 'last_checkpoint')  # of the earlier run
    for _ in range(2):  # the first one released it
        load('train').main()
    assert during == [f'{work}: another training is running in it; use another --work-dir'] * 2


def test_only_rank_0_holds_the_lock(tmp_path, monkeypatch):
    cfg = Config({'work_dir': str(tmp_path), 'launcher': 'pytorch'})
    monkeypatch.setenv('RANK', '0')
    with training._locked(cfg):
        monkeypatch.setenv('RANK', '1')
        with training._locked(cfg):
            pass


def test_overwriting_forgets_the_earlier_run(work, tiny_config, monkeypatch):
    """Without its record, a later --resume cannot continue from the end of the earlier run."""
    monkeypatch.setattr(training, 'Runner', InterruptedRunner)
    monkeypatch.setattr(InterruptedRunner, 'train', lambda self: None)
    monkeypatch.setattr('sys.argv', ['train.py', str(tiny_config), '--work-dir', str(work), '--overwrite'])
    load('train').main()
    assert not (work / 'last_checkpoint').exists()
    assert (work / 'epoch_2.pth').exists()
