"""The page of tools/explore.py: what it draws."""

import pytest
from mmengine.config import Config

from mmpola.messages import UsageError
from mmpola.openmmlab.config.build import build_model
from mmpola.openmmlab.predict.reader import open_reader
from mmpola.openmmlab.start.fit import load_model, read_training_checkpoint
from tests.helpers.processes import load_script

SECOND = 'stages.1.blocks.0.attn'


@pytest.fixture
def explorer(classifier, write_checkpoint, tmp_path):
    """The explorer of a small classifier with random weights."""
    cfg = Config.fromfile(classifier)
    checkpoint = read_training_checkpoint(write_checkpoint(classifier, tmp_path / 'random.pth'))
    return load_script('explore').Explorer(
        cfg, load_model(build_model(cfg), checkpoint), open_reader(cfg)
    )


def test_a_point_a_layer_and_a_head_are_drawn(explorer, photo):
    calls = []
    explorer.model.backbone.register_forward_pre_hook(lambda *_: calls.append(1))
    assert explorer.heads(SECOND) == ['mean', '1', '2']
    centre = explorer.maps(photo, SECOND, 'mean', None)
    assert centre.get_suptitle() == f'{SECOND}: weights of the marked query, mean of 2 heads'
    assert centre.axes[0].get_ylabel() == 'pixel 45, 30'
    other = explorer.maps(photo, SECOND, '2', (50, 20))
    assert other.get_suptitle().endswith('head 2 of 2')
    assert other.axes[0].get_ylabel() == 'pixel 50, 20'
    assert [len(figure.axes) > 0 for figure in explorer.charts(photo)] == [True] * 4
    assert len(calls) == 1
    with pytest.raises(UsageError, match='point 2,30: expected a pixel that the network sees'):
        explorer.maps(photo, SECOND, 'mean', (2, 30))


def test_charts_of_kept_inputs_are_those_of_the_figures(explorer, photo):
    """The page keeps the inputs of all layers; `tools/analyze.py` uses them while they exist."""
    analysis = load_script('explore').analysis
    scene, kept = explorer.open(photo)
    found = analysis.observe(
        explorer.model.backbone, scene.inputs, lambda layer: analysis.analyze_layer(layer, [])
    )
    for name, layer in kept.items():
        later = analysis.analyze_layer(layer, [])
        assert later.as_json() == found[name].as_json()
