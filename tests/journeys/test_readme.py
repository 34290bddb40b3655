"""The commands of README.md, and the code of docs/timm.md and docs/export.md, run."""

import json
import subprocess
import sys

import pytest
import timm
import torch
from PIL import Image

import mmpola.timm  # noqa: F401
from mmpola.backbones import pola_swin
from mmpola.papers.ablations import pola_deit
from tests.helpers.pages import code_blocks, commands_of
from tests.helpers.processes import environment


@pytest.mark.slow
def test_the_commands_on_a_photograph_run(root, tmp_path):
    Image.new('RGB', (160, 120), 'green').save(tmp_path / 'photo.jpg')
    commands = commands_of(root / 'README.md', 0)[2:4]
    for command in commands:
        words = command.replace('mmpola', f'{sys.executable} -m mmpola', 1).split()
        variables = {**environment(), 'PYTHONPATH': str(root)}
        subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, check=True)
    found = json.loads((tmp_path / 'predictions' / 'preds' / 'photo.json').read_text())
    assert len(found['scores']) == len(found['bboxes'])
    assert (tmp_path / 'predictions' / 'vis' / 'photo.jpg').is_file()
    assert (tmp_path / 'attention' / 'photo' / 'maps_stages.0.blocks.0.attn.png').is_file()


@pytest.mark.slow
def test_the_page_on_timm_runs(root, tmp_path, monkeypatch):
    """On models of one block per stage, whose random weights are written first."""
    monkeypatch.setitem(pola_swin.ARCHS['tiny'], 'depths', (1, 1, 1, 1))
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'checkpoints').mkdir()
    weights = timm.create_model('pola_swin_tiny', num_classes=10).state_dict()
    torch.save({'state_dict': weights}, 'checkpoints/pola_swin_t.pth')
    *timm_blocks, backbone_block, operator_block = code_blocks(root / 'docs' / 'timm.md')
    names = {}
    exec(''.join(timm_blocks), names)
    assert names['features'].shape == (2, 768, 7, 7)
    assert names['logits'].shape == (2, 10)
    assert [x.shape[1] for x in names['maps']] == [96, 768]
    assert len(names['optimizer'].param_groups) > 4  # of 4 blocks, the stem and the head
    exec((backbone_block + operator_block).replace('800, 1344', '80, 134'), names)
    assert [x.shape[1] for x in names['maps']] == [96, 192, 384, 768]
    assert names['y'].shape == (2, 196, 128)


@pytest.mark.slow
def test_the_page_on_export_runs(root, tmp_path, monkeypatch):
    monkeypatch.setitem(pola_deit.ARCHS['tiny'], 'depth', 1)
    monkeypatch.chdir(tmp_path)
    # The other blocks need a detector: tests/journeys/openmmlab/export/test_detector.py runs them.
    *_, export_block = code_blocks(root / 'docs' / 'export.md')
    names = {}
    exec(export_block, names)
    assert names['computed'].shape == (1, 10)
    torch.testing.assert_close(torch.from_numpy(names['computed']), names['logits'])
