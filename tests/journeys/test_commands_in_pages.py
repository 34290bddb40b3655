"""Every command that a page prints is parsed, and its config validated, up to missing data."""

import argparse
import re
import shlex
from importlib import import_module, util
from pathlib import Path

import pytest
from mmengine.registry import TRANSFORMS, init_default_scope

from mmpola.command import SCRIPTS
from mmpola.openmmlab.config.build import validate_config
from mmpola.openmmlab.config.read import load_config
from tests.helpers import ROOT
from tests.helpers.configs import INSTALLED
from tests.helpers.pages import code_blocks

PAGES = [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *sorted((ROOT / 'docs').glob('*.md'))]

MASK_RCNN = 'configs/mask_rcnn_pola_swin_t_1x.py'
PLACEHOLDERS = {
    'CONFIG': MASK_RCNN,
    'CHECKPOINT': 'checkpoint.pth',
    'OUT.onnx': 'model.onnx',
    'SUITE': 'attention',
}
OPTIONS_FOR = (
    MASK_RCNN,
    'configs/finetune_pola_swin_t.py',
    'configs/ham_polaformer_pp_b1_160k.py',
    'configs/lra_text_pola_a3.py',
)
"""Configs for which the pages print options without naming one."""

SHELL = re.compile(
    r'(cd|datum|git|if|labelme2coco|ln|mkdir|pip|sed|source|tensorboard|python -c|'
    r'\.venv/bin/(?!python)\S+)\b'
)
"""Commands that are not ours."""

TRAINS = ('train', 'test', 'check_data')
"""Scripts that validate their config."""


class Parsed(Exception):  # noqa: N818  not an error
    """The arguments of a script, in place of what it does with them."""


def commands(page):
    """Return the commands of a page's shell blocks, without comments and line ends."""
    found = []
    for block in code_blocks(page, 'bash'):
        text = re.sub(r'(^|\s)# .*', '', block.replace('\\\n', ' '), flags=re.MULTILINE)
        command = ''
        for line in text.splitlines():
            command += line
            if command.count('"') % 2:  # a string of several lines
                command += '\n'
                continue
            for part in command.split(' && '):
                if part.strip():
                    found.append(part.strip())
            command = ''
    return found


ALL = [(page.name, command) for page in PAGES for command in commands(page)]


def arguments_of(module, words, monkeypatch):
    """Return what a script's parser makes of the words; argparse ends the test if it refuses."""
    parse = argparse.ArgumentParser.parse_args

    def parse_args(self, *args, **kwargs):
        raise Parsed(parse(self, *args, **kwargs))

    monkeypatch.setattr(argparse.ArgumentParser, 'parse_args', parse_args)
    monkeypatch.setattr('sys.argv', ['script', *words])
    with pytest.raises(Parsed) as raised:
        import_module(module).main()
    monkeypatch.undo()
    return raised.value.args[0]


def script_and_words(command):
    """Return the module that a command runs and its arguments; None if it is not ours."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(command)]
    words = [word for word in words if not re.fullmatch(r'[A-Z_]+=\S+', word)]  # variables
    if words[:2] == ['bash', 'tools/dist_train.sh']:
        return 'tools.train', [words[2], *words[4:]]
    if words[:2] == ['bash', 'tools/slurm_train.sh']:
        return 'tools.train', [words[4], '--work-dir', words[5], *words[6:]]
    if words[0] == 'torchrun':
        words = words[words.index('-m') + 1 :]
    if words[0] == 'mmpola' and words[1:] and words[1] in SCRIPTS:
        script = SCRIPTS[words[1]][0].removesuffix('.py')
        return f'tools.{script}', words[2:]
    if words[0].endswith('python'):
        if words[1] == '-m':
            return words[2], words[3:]
        if words[1].startswith('tools/'):
            return words[1].removesuffix('.py').replace('/', '.'), words[2:]
    return None


@pytest.mark.parametrize(('page', 'command'), ALL, ids=[f'{page}: {text}' for page, text in ALL])
def test_a_command(page, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    found = script_and_words(command)
    if found is None:
        words = shlex.split(command)
        if words[0] == 'bash':
            assert Path(words[1]).is_file()
        elif not command.startswith('python train.py '):  # a script of timm
            assert SHELL.match(command) or words == ['mmpola']
        for word in words[2:]:
            if word.startswith('tests/'):
                assert Path(word).exists()
        return
    module, words = found
    if module in ('mmpola', 'pytest'):
        return
    if module.startswith('benchmarks.'):
        assert util.find_spec(module)
        return
    args = arguments_of(module, words, monkeypatch)
    config = getattr(args, 'config', None)
    if config is None or not Path(config).is_file():
        return  # a config of the user
    cfg = load_config(args)
    if module.removeprefix('tools.') in TRAINS:
        check(cfg)


def check(cfg):
    """Validate a config, and build its transforms, which need no data."""
    init_default_scope(cfg.default_scope)
    validate_config(cfg)
    for split in ('train', 'val', 'test'):
        dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset') or {}
        for transform in dataset.get('pipeline', ()):
            TRANSFORMS.build(transform)


def inline_options(page):
    """Return the options that a page's text and tables print."""
    text = re.sub(r'^```.*?^```$', '', page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = [
        match.split()
        for match in re.findall(r'`--cfg-options ([^`]+)`', text)
        if '=' in match and not match.startswith('KEY') and 'NAME' not in match
    ]
    if page.name == 'pretrain.md':  # the column 'add to --cfg-options'
        cells = re.findall(r'^\| [^|]+ \| `((?:\w+\.)+\w+=[^`]+)`', text, re.MULTILINE)
        found += [cell.split() for cell in cells]
    return found


OPTIONS = [(page.name, options) for page in PAGES for options in inline_options(page)]


@pytest.mark.parametrize(
    ('page', 'options'), OPTIONS, ids=[f'{page}: {" ".join(words)}' for page, words in OPTIONS]
)
def test_options_in_a_text(page, options, monkeypatch):
    """They are valid for one of the configs that the pages speak of."""
    monkeypatch.chdir(ROOT)
    words = [word.replace('FILE', 'file.pth').replace('DIR', 'data') for word in options]
    problems = []
    for config in OPTIONS_FOR:
        args = arguments_of('tools.train', [config, '--cfg-options', *words], monkeypatch)
        try:
            check(load_config(args))
            return
        except Exception as error:
            problems.append(f'{config}: {type(error).__name__}: {error}')
    pytest.fail('\n'.join(problems))


def test_configs_of_the_guide(tmp_path, monkeypatch):
    """They are valid in any folder; in_your_own_project.md has tests of its own."""
    monkeypatch.chdir(tmp_path)
    names = []
    for page in ('train.md', 'pretrain.md'):
        for block in code_blocks(ROOT / 'docs' / page):
            named = re.match(r'# (\w+\.py)\n', block)
            if named is None:
                continue  # tests/pretraining/test_docs.py runs it
            name = named[1]
            Path(name).write_text(block.replace(INSTALLED, f"'{ROOT}/"))
            names.append(name)
    assert names[:3] == ['small_images.py', 'exact_resume.py', 'tenth.py']
    assert names[3:] == ['taught.py', 'taught_without_labels.py']
    for name in names:
        check(load_config(argparse.Namespace(config=name, cfg_options=None)))
