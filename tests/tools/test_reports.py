"""doctor.py and get_flops.py."""

import doctor
import pytest
from get_flops import build_model, count_macs
from mmengine.config import Config


def test_doctor_finds_this_environment_well(run_tool):
    output = run_tool('doctor.py').stdout
    assert 'ok  mmcv.ops' in output
    assert 'ok  attention backends  reference' in output
    assert '!!' not in output


def test_doctor_names_what_does_not_fit(monkeypatch):
    versions = {'mmcv': '2.2.0', 'torch': '2.0.1'}
    monkeypatch.setattr(doctor.metadata, 'version', versions.__getitem__)
    assert doctor._package('mmcv', '2.0.0', '2.2.0').remedy == 'needs >= 2.0.0, < 2.2.0: bash tools/install.sh'
    assert doctor._package('torch', '2.1').remedy == 'needs >= 2.1: bash tools/install.sh'


def test_doctor_survives_what_does_not_import():
    finding = doctor._importable('no_such_module', 'install it')
    assert finding.found == "ModuleNotFoundError: No module named 'no_such_module'"
    assert finding.remedy == 'install it'


@pytest.mark.slow
def test_macs_of_the_backbone_are_the_papers(root):
    """Pola-Swin-T at 224: 4.68 G counted on the authors' code, softmax products included; the head is 0.8 M."""
    model = build_model(Config.fromfile(root / 'configs' / 'mask_rcnn_pola_swin_t_1x.py'))
    assert count_macs(model.backbone, 224, 224)[''] == pytest.approx(4.68, rel=0.03)


@pytest.mark.slow
def test_flops_table_of_a_detector(run_tool, tiny_config):
    output = run_tool('get_flops.py', tiny_config, '--shape', 80, 96).stdout
    for part in ('backbone.patch_embed', 'backbone.layers.3', 'neck', 'roi_head', 'total'):
        assert part in output
