"""The wheel and the editable installation have configs and scripts, which need no repository."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import mmpola
from tests.helpers.configs import TINY, TINY_SEGMENTATION, config_files

pytestmark = pytest.mark.slow

SOURCE = ('mmpola', 'benchmarks', 'configs', 'tools', 'docs', 'tests')
REPOSITORY_ONLY = {'install.sh', 'quickstart.sh', 'run_tests.sh', 'dev'}
OFFLINE = ('--disable-pip-version-check', '--no-deps', '--no-build-isolation', '--no-index')


def run(*command, cwd):
    """Run a command without this process's import paths; return its standard output and errors."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith('PYTHON')}
    result = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**environment, 'OMP_NUM_THREADS': '1'},
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


@pytest.fixture(scope='module')
def source(root, tmp_path_factory):
    """A copy of the repository for builds to write into, with a linter's cache in tools/."""
    copy = tmp_path_factory.mktemp('source') / 'mmpola'
    for name in SOURCE:
        shutil.copytree(
            root / name, copy / name, ignore=shutil.ignore_patterns('__pycache__', '.mim')
        )
    for path in root.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    (copy / 'tools' / '.some_cache').mkdir()
    (copy / 'tools' / '.some_cache' / 'left.py').write_text('')
    return copy


@pytest.fixture(scope='module')
def archive(source, tmp_path_factory):
    """The source distribution."""
    folder = tmp_path_factory.mktemp('archive')
    build = f'from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})'
    run(sys.executable, '-c', build, cwd=source)
    (path,) = folder.glob('*.tar.gz')
    return path


@pytest.fixture(scope='module')
def wheel(archive, tmp_path_factory):
    """The wheel that is built from the source distribution, as PyPI's users may do it."""
    folder = tmp_path_factory.mktemp('wheel')
    run(sys.executable, '-m', 'pip', 'wheel', *OFFLINE, archive, cwd=folder)
    (path,) = folder.glob('*.whl')
    return path


def environment(folder, *install):
    """Create a virtual environment with the packages of this one, except an editable mmpola.

    Its own packages come first. Python does not process the .pth files in a folder that is itself
    named by a .pth file, and an editable installation consists of such a file.

    Returns:
        The path of its interpreter.
    """
    venv.create(folder, with_pip=False)
    python = folder / 'bin' / 'python'
    (own,) = (folder / 'lib').glob('python*/site-packages')
    others = [path for path in sys.path if Path(path).name in ('site-packages', 'dist-packages')]
    (own / 'packages.pth').write_text('\n'.join(others) + '\n')
    run(
        sys.executable,
        '-m',
        'pip',
        '--python',
        python,
        'install',
        *OFFLINE,
        '--ignore-installed',
        *install,
        cwd=folder,
    )
    return python


@pytest.fixture(scope='module')
def python(wheel, tmp_path_factory):
    """An interpreter with the wheel installed."""
    return environment(tmp_path_factory.mktemp('environment') / 'wheel', wheel)


@pytest.fixture(scope='module')
def mim(python, tmp_path_factory):
    """The installed folder of configs and scripts, which is in that environment."""
    folder = tmp_path_factory.mktemp('anywhere')
    path = Path(run(python, '-c', 'import mmpola; print(mmpola.__path__[0])', cwd=folder).strip())
    assert path.is_relative_to(python.parent.parent)
    return path / '.mim'


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / 'my project'
    folder.mkdir()
    return folder


def test_the_source_distribution_has_every_file_of_scripts_and_pages(archive, source):
    """Scripts read tables and lists, and pages link to them."""
    with tarfile.open(archive) as packed:
        content = {name.partition('/')[2] for name in packed.getnames()}
    absent = []
    for folder in ('benchmarks', 'configs', 'docs', 'tools'):
        for path in (source / folder).rglob('*'):
            hidden = any(
                part.startswith(('.', '_build')) for part in path.relative_to(source).parts
            )
            name = path.relative_to(source).as_posix()
            if path.is_file() and not hidden and name not in content:
                absent.append(name)
    assert absent == []


def test_the_wheel_contains_configs_scripts_and_the_model_index(wheel, root):
    with zipfile.ZipFile(wheel) as archive:
        content = set(archive.namelist())
    modules = {path.relative_to(root).as_posix() for path in (root / 'mmpola').rglob('*.py')}
    assert modules <= content
    sources = [path for folder in ('configs', 'tools') for path in (root / folder).rglob('*')]
    expected = {
        path.relative_to(root).as_posix()
        for path in sources
        if path.suffix in ('.py', '.sh', '.yml', '.md', '.csv')
        and not REPOSITORY_ONLY & set(path.parts)
    }
    inside = {
        name.removeprefix('mmpola/.mim/') for name in content if name.startswith('mmpola/.mim/')
    }
    assert inside == expected | {'model-index.yml'}
    assert 'mmpola/ops/README.md' in content
    assert {name.split('/')[0] for name in content} == {
        'mmpola',
        f'mmpola-{mmpola.__version__}.dist-info',
    }


def test_an_editable_installation_links_them(source, tmp_path):
    python = environment(tmp_path / 'editable', '--editable', source)
    code = """
import pathlib, mmpola
mim = pathlib.Path(mmpola.__path__[0], '.mim')
for path in sorted(mim.iterdir()):
    print(path.name, path.is_symlink(), path.resolve())
"""
    assert run(python, '-c', code, cwd=tmp_path).splitlines() == [
        f'{name} True {source / name}' for name in ('configs', 'model-index.yml', 'tools')
    ]


def test_a_users_config_inherits_an_installed_one(python, project, root):
    (project / 'my_mask_rcnn.py').write_text(config_files(root)['my_mask_rcnn.py'])
    code = """
from mmengine.config import Config
cfg = Config.fromfile('my_mask_rcnn.py')
print(cfg.train_dataloader.batch_size, cfg.model.type, cfg.model.backbone.arch)
print(cfg.train_cfg.max_epochs)
"""
    assert run(python, '-c', code, cwd=project).splitlines()[-2:] == ['4 MaskRCNN tiny', '12']


ONE_EPOCH_OF_ONE_STEP = """
train_dataloader['dataset']['indices'] = 2
train_cfg = dict(max_epochs=1, val_interval=1)

import mmpola
print('mmpola is', mmpola.__path__[0])
"""

ONE_STEP = """
train_cfg = dict(max_iters=1, val_interval=1)

import mmpola
print('mmpola is', mmpola.__path__[0])
"""


def installed(package):
    """The folder with the configs and scripts of an OpenMMLab package."""
    return Path(find_spec(package).origin).parent / '.mim'


def test_a_detector_trains_from_the_wheel(python, mim, project, shapes):
    """In a folder with a space in its name, with the installed script."""
    (project / 'data').symlink_to(shapes)
    base = str(mim / 'configs' / 'mask_rcnn_pola_swin_shapes.py')
    (project / 'tiny.py').write_text(
        TINY.format(base=base, data='data/coco/') + ONE_EPOCH_OF_ONE_STEP
    )
    output = run(python, mim / 'tools' / 'train.py', 'tiny.py', cwd=project)
    assert f'mmpola is {mim.parent}\n' in output
    assert 'segm_mAP_50' in output
    assert (project / 'work_dirs' / 'tiny' / 'epoch_1.pth').is_file()


def test_a_segmenter_trains_from_the_wheel_with_mmsegs_script(python, mim, project, shapes):
    base = str(mim / 'configs' / 'semantic_fpn_pola_pvt_t_40k.py')
    (project / 'data').symlink_to(shapes)
    (project / 'tiny.py').write_text(
        TINY_SEGMENTATION.format(base=base, data='data/ade') + ONE_STEP
    )
    output = run(python, installed('mmseg') / 'tools' / 'train.py', 'tiny.py', cwd=project)
    assert f'mmpola is {mim.parent}\n' in output
    assert 'mIoU' in output
    assert (project / 'work_dirs' / 'tiny' / 'iter_1.pth').is_file()
