"""README.md and docs/weights.md agree with the code, and the Python of README.md runs."""

import re
import subprocess

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope

import mmpola.timm  # noqa: F401
from mmpola.backbones import PolaSwin
from mmpola.checkpoint.hub import POLAFORMER_PP_PAGE, PUBLISHED_MODELS, short_name
from mmpola.zoo import NAMED
from tests.helpers.configs import config_files
from tests.helpers.pages import code_blocks, commands_of


@pytest.fixture
def blocks(root):
    timm_block, config_block, layers_block = code_blocks(root / 'README.md')
    return {'timm': timm_block, 'config': config_block, 'layers': layers_block}


def test_the_readme_opens_with_what_mmpola_is_and_how_to_install_it(root):
    page = root / 'README.md'
    text = page.read_text()
    assert text.startswith('# mmpola\n')
    before, _, _ = text.partition('```bash')
    assert 'mmpola brings polarity-aware linear attention' in before
    clone, install, *_, first, second = commands_of(page, 0)
    assert clone.startswith('git clone ADDRESS mmpola')
    assert install.startswith('bash tools/install.sh')
    assert [first, second] == ['bash tools/quickstart.sh', 'bash tools/run_tests.sh']


def test_the_config_is_a_mask_rcnn_on_pola_swin(blocks, root, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text(blocks['config'])
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert isinstance(model.backbone, PolaSwin)
    assert model.backbone.init_cfg['checkpoint'] == 'mmpola://pola_swin_tiny'
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters == 48_791_944  # of mask_rcnn_pola_swin_t_1x
    assert isinstance(build_optim_wrapper(model, cfg.optim_wrapper).optimizer, torch.optim.AdamW)
    assert recipe(cfg) == recipe(Config.fromfile(root / 'configs' / 'mask_rcnn_pola_swin_t_1x.py'))


def recipe(cfg):
    """Return the optimizer, and the constructor, which decides what has no weight decay."""
    torch_defaults = {'betas': (0.9, 0.999)}
    wrapper = cfg.optim_wrapper
    return (
        {**torch_defaults, **wrapper.optimizer},
        wrapper.constructor,
        wrapper.get('paramwise_cfg'),
    )


@pytest.mark.parametrize(
    ('name', 'config'),
    [
        ('faster_rcnn_pola_swin.py', 'mask_rcnn_pola_swin_t_1x.py'),
        ('upernet_pola_swin.py', 'upernet_pola_swin_t_160k.py'),
    ],
)
def test_own_projects_train_by_the_same_recipe(name, config, root, tmp_path):
    (tmp_path / name).write_text(config_files(root)[name])
    assert recipe(Config.fromfile(tmp_path / name)) == recipe(
        Config.fromfile(root / 'configs' / config)
    )


def test_the_tables_of_weights_list_what_the_authors_publish(root):
    """Names that are downloaded, files that are not, and the accuracies that the configs state."""
    text = (root / 'docs' / 'weights.md').read_text()
    row = re.compile(
        r'^\|(?: `mmpola://(\w+)` \|)? `checkpoints/(\w+)\.pth` '
        r'\| \[imagenet_\w+\]\(\.\./configs/imagenet_(\w+)\.py\) \| ([\d.]+) \|$',
        re.MULTILINE,
    )
    rows = row.findall(text)
    named = [name for name, _, _, _ in rows if name]
    assert named == list(PUBLISHED_MODELS)
    by_hand = [file for name, file, _, _ in rows if not name]
    assert by_hand == [name for name in NAMED if name.startswith('polaformer_pp')]
    assert POLAFORMER_PP_PAGE.partition(' ')[0] in text
    for name, file, config, figure in rows:
        model = name or file
        assert short_name(model) == file == config
        path = root / 'configs' / f'imagenet_{config}.py'
        assert f'Expected top-1: {figure} (' in path.read_text()
        backbone = Config.fromfile(path).model.backbone
        class_name, arguments = NAMED[model]
        assert backbone.type == f'mmpola.{class_name}'
        assert all(backbone[key] == value for key, value in arguments.items())


def test_nothing_tells_to_install_a_package_that_is_not_published(root):
    files = subprocess.run(
        ['git', 'ls-files', '-z'], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    named = re.compile(r'pip install [^\n]*\bmmpola(\[|[=<>]|$|[\'"` ])', re.MULTILINE)
    told = {
        name
        for name in files.split('\0')
        if name.endswith(('.md', '.py', '.sh', '.toml')) and named.search((root / name).read_text())
    }
    assert told == set()


def test_the_timm_models_run(blocks):
    names = {}
    exec(blocks['timm'], names)
    assert names['logits'].shape == (1, 10)


def test_the_layers_run(blocks):
    names = {}
    exec(blocks['layers'], names)
    assert names['maps'].shape == (2, 256, 60, 80)
    assert names['tokens'].shape == (2, 4800, 256)
