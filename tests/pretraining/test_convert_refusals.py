"""What the conversion of checkpoints refuses; existing files are never damaged."""

from collections import deque

import torch

from mmpola.checkpoint.write import check_destination
from mmpola.pretraining.convert import convert
from tests.helpers.models import assert_same, named, run_convert, save
from tests.helpers.refusals import assert_lines, refusal


def test_a_given_name_must_fit(tmp_path):
    source = save({'model': named()}, tmp_path / 'a.pth')
    assert convert(source, arch='pola_pvt_v2_b0').meta['arch'] == 'pola_pvt_v2_b0'
    message = refusal(convert, source, arch='pola_pvt_v2_b1')
    assert message.startswith(f'{source}: does not fit pola_pvt_v2_b1: ')
    assert 'stem.proj.weight expected [64, 3, 7, 7], got [32, 3, 7, 7], ' in message
    assert '\n' not in message
    message = refusal(convert, source, arch='pola_swin_huge')
    assert message.startswith('--arch: expected one of pola_pvt_nano, pola_pvt_tiny, ')
    assert message.endswith(', polaformer_pp_b5, got pola_swin_huge')


def test_a_file_is_not_written_under_the_name_of_another_format(tmp_path, capsys):
    source = save({'model': named()}, tmp_path / 'a.pth')
    assert run_convert(source, tmp_path / 'b.safetensors', '--whole') == 2
    assert 'DST: expected the name of a .pth file' in capsys.readouterr().err
    assert not (tmp_path / 'b.safetensors').exists()


def test_a_head_that_does_not_fit_can_be_left_out(tmp_path):
    source = save({'model': {**named(), 'head.weight': torch.zeros(10, 7)}}, tmp_path / 'a.pth')
    message = refusal(convert, source, arch='pola_pvt_v2_b0')
    assert message.startswith(f'{source}: does not fit pola_pvt_v2_b0: ')
    assert 'head.weight expected [10, 256], got [10, 7]' in message
    assert '--backbone-only' in message
    assert (
        'head.weight' not in convert(source, backbone_only=True, arch='pola_pvt_v2_b0').state_dict
    )


def test_unreadable_files_are_refused_in_one_line(weights, tmp_path, capsys):
    good = save({'state_dict': weights}, tmp_path / 'good.pth')
    cut = tmp_path / 'cut.pth'
    cut.write_bytes(good.read_bytes()[:2000])
    weights['head.bias'][1] = float('nan')
    cases = {
        tmp_path / 'none.pth': 'no such checkpoint',
        tmp_path: 'no such checkpoint',
        cut: 'not a checkpoint, or truncated',
        save({'model': weights, 'x': deque([1])}, tmp_path / 'foreign.pth'): 'refused',
        save({'conv1.weight': torch.zeros(1)}, tmp_path / 'resnet.pth'): (
            "expected a backbone of mmpola, got 'bare state dict' with conv1.weight"
        ),
        save(
            {'state_dict': dict.fromkeys(('head.weight', 'a', 'b.c', 'd'), torch.ones(1))},
            tmp_path / 'head.pth',
        ): ("expected a backbone of mmpola, got 'state_dict' with head.weight, a, b.c, d"),
        save({'model': weights}, tmp_path / 'nan.pth'): 'NaN or infinite values in head.bias',
    }
    for source, message in cases.items():
        assert run_convert(source, tmp_path / 'out.pth') == 2
        error = capsys.readouterr().err
        assert error.startswith(f'error: {source}: {message}')
        assert error.count('\n') == 1
        assert not (tmp_path / 'out.pth').exists()


def test_nothing_is_overwritten_by_default(weights, tmp_path):
    source = save({'state_dict': weights}, tmp_path / 'a.pth')
    taken = tmp_path / 'taken.pth'
    taken.write_text('precious')
    link = tmp_path / 'link.pth'
    link.symlink_to(source)
    for destination, overwrite, rule in [
        (taken, False, '--overwrite'),
        (source, True, 'got the same'),
        (link, True, 'got the same'),
        (tmp_path, True, 'got a folder'),
    ]:
        message = refusal(check_destination, destination, overwrite, source)
        assert_lines([message], (f'{destination}: ', rule, ''))
    second = save({'state_dict': {}, 'message_hub': {}}, tmp_path / 'best_2.pth')
    message = refusal(check_destination, second, True, source)  # best_*.pth names two
    assert message.startswith(f'{second}: expected a file to write, got the checkpoint of a')
    message = refusal(check_destination, tmp_path / 'no' / 'b.pth', False, source)
    assert message.startswith(f'{tmp_path / "no"}: ')
    assert run_convert(source, taken) == 2
    assert taken.read_text() == 'precious'
    assert run_convert(source, taken, '--overwrite') == 0
    assert_same(torch.load(taken, weights_only=True)['state_dict'], weights)
