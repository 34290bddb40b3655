"""Our own experiments: the list of runs, skipping and resuming, collecting, tables and figures."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

import benchmarks.records
from benchmarks.experiments import __main__ as command
from benchmarks.experiments import networks, recall, report, resume_check, running, tables
from benchmarks.experiments.class_parts import ClassFoldersPart
from benchmarks.experiments.kept_areas import KeptIoUMetric
from benchmarks.experiments.networks import layer_numbers, mean_rows
from benchmarks.experiments.plan import (
    EXPERIMENTS,
    FOLDER,
    SEEDS,
    STARTS,
    Experiment,
    Metric,
    Run,
    runs_of,
)
from benchmarks.experiments.results import RESULTS, collect, load, load_earlier, save, write_record
from benchmarks.experiments.sampling import standard_error
from benchmarks.records import trees
from mmpola import PolaPVT
from mmpola.papers import analysis
from tests.helpers import ROOT

DETECTION = EXPERIMENTS['e1']
RUN = Run('detect_swin', 1)


def git(*arguments, input=None):
    """Return what git prints in this repository."""
    done = subprocess.run(
        ['git', *arguments], cwd=ROOT, input=input, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def build(variant):
    cfg = Config.fromfile(Run(variant, 0).config)
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model)


def test_all_seeds_of_all_variants_run_once_and_take_turns():
    names = [run.name for run in runs_of(['e1', 'e2'])]
    assert names[:5] == [
        'detect_pola_swin-0',
        'detect_pola_pvt-0',
        'detect_swin-0',
        'detect_pvt-0',
        'detect_pola_swin-1',
    ]
    assert len(names) == len(set(names)) == 3 * (4 + 4)


def test_every_config_is_a_variant():
    variants = {name for experiment in EXPERIMENTS.values() for name in experiment.variants}
    configs = {path.stem for path in (FOLDER / 'configs').glob('*.py')}
    assert configs - {'detect_random', 'segment_random', 'classify'} == variants


@pytest.mark.parametrize('key', EXPERIMENTS)
def test_variants_differ_in_nothing_but_the_backbone(key):
    recipes = []
    for variant in EXPERIMENTS[key].variants:
        cfg = Config.fromfile(Run(variant, 0).config)
        backbone = cfg.model.pop('backbone')
        assert backbone.get('drop_path_rate', 0.0) == 0.0
        if key in STARTS:  # the start, and the rates that suit it
            cfg.model.pop('init_cfg', None)
            cfg.pop('optim_wrapper')
        if key.startswith('e8'):  # the whole detector, whose boxes are of no class
            cfg.pop('load_from')
            cfg.model.roi_head.bbox_head.pop('reg_class_agnostic', None)
        assert cfg.default_hooks.checkpoint.save_best == EXPERIMENTS[key].metrics[0].key
        assert cfg.randomness.seed == 0
        recipes.append(cfg.to_dict())
        assert len(data_folders(cfg)) == 1
    assert all(recipe == recipes[0] for recipe in recipes)


def data_folders(cfg):
    """A base's folder, such as data/imagenet, must be replaced in every split."""
    found = set()
    for split in ('train', 'val', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        for name in ('root', 'classes', 'data_root'):
            if dataset.get(name) is not None:
                found.add('/'.join(dataset[name].split('/')[:2]))
    return found


def test_pictures_are_for_training_or_for_validation(tmp_path):
    for number in range(25):
        path = tmp_path / f'class{number % 2}' / f'{number:02}.png'
        path.parent.mkdir(exist_ok=True)
        path.touch()
    parts = [
        ClassFoldersPart(root=str(tmp_path), training=False, transform={}, every=10, places=places)
        for places in (range(1, 10), (0,))
    ]
    paths = [[part.get_data_info(i)['img_path'] for i in range(len(part))] for part in parts]
    assert [len(part) for part in paths] == [22, 3]
    assert len({*paths[0], *paths[1]}) == 25
    assert parts[1].labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize('key', ['e1', 'e2'])
def test_backbones_have_one_size(key):
    sizes = []
    for variant in EXPERIMENTS[key].variants:
        model = build(variant)
        sizes.append(sum(x.numel() for x in model.parameters()))
    assert max(sizes) < 1.1 * min(sizes)


@pytest.mark.parametrize('variant', [*EXPERIMENTS['e1'].variants, *EXPERIMENTS['e2'].variants])
def test_all_backbones_draw_the_same_initial_weights(variant):
    """Every matrix has Xavier's deviation, also one that is a 1x1 convolution or a bare weight."""
    model = build(variant)
    model.init_weights()
    compared = 0
    for name, weight in model.backbone.named_parameters():
        is_matrix = name.endswith('weight') and weight.ndim > 1 and weight[0, 0].numel() == 1
        if is_matrix and weight.numel() >= 1024 and weight.shape[1] != 1:
            fan = weight.shape[0] + weight.shape[1]
            assert weight.std().item() == pytest.approx(math.sqrt(2 / fan), rel=0.1), name
            compared += weight.numel()
    assert compared > 0.5 * sum(weight.numel() for weight in model.backbone.parameters())


@pytest.mark.parametrize('variant', EXPERIMENTS['e4'].variants)
def test_ablations_train(variant):
    backbone = build(variant).backbone
    x = torch.randn(1, 3, 64, 64)
    backbone(x)[-1].sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


TREES = {'mmpola': 'abc', 'configs': 'def'}


def write_run(folder, run, interrupted=True, tested=True):
    """Write what a run leaves in its folder: three starts, logs, a checkpoint, a test."""
    entry = {'script': 'train.py', 'trees': TREES, 'started': '2026-11-25 18:00:00'}
    entry.update(wall_minutes=2.0, cpu_minutes=1.5, exit_status=0, processor='a CPU', torch='2')
    refused = {**entry, 'exit_status': 2, 'cpu_minutes': 0.1, 'wall_minutes': 0.1}
    running.write_journal(folder, [{**entry, 'exit_status': None}, refused, entry])
    logs = {'20261125_180000': [(25, 3.0), (50, math.nan)], '20261125_190000': [(50, 2.0)]}
    for number, (name, losses) in enumerate(logs.items(), start=1):
        lines = [{'loss': loss, 'iter': step, 'step': step} for step, loss in losses]
        lines.insert(1, {'coco/bbox_mAP': 0.1 * number, 'step': number})
        path = folder / name / 'vis_data' / 'scalars.json'
        path.parent.mkdir(parents=True)
        path.write_text('\n'.join(json.dumps(line) for line in lines) + '\n')
    weights = {'state_dict': {'w': torch.zeros(3, 5), 'index': torch.zeros(9, dtype=torch.long)}}
    torch.save(weights, folder / 'best_coco_bbox_mAP_epoch_2.pth')
    (folder / running.TRAINED).touch()
    if tested:
        metrics = {metric.key: 0.205 for metric in DETECTION.metrics}
        path = folder / running.TESTED / '20261125_200000' / '20261125_200000.json'
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(metrics))


def test_collect_joins_what_was_logged_over_resumes(tmp_path):
    folder = tmp_path / RUN.name
    folder.mkdir()
    assert running.status(folder) == 'not run yet'
    write_run(folder, RUN)
    assert running.status(folder) == 'finished'
    record = collect(RUN, folder)
    assert record['test']['AP'] == record['test']['AP50'] == 20.5
    assert record['validation'] == [(1, 10.0), (2, 20.0)]
    assert record['best_on_validation'] == {'epochs': 2, 'AP': 20.0}
    assert record['loss'] == [(25, 3.0), (50, 2.0)]
    assert record['parameters'] == 15
    assert record['resumed'] == 1
    assert record['cpu_minutes'] == 3.1
    assert record['trees'] == [TREES]
    save(record, tmp_path / 'results')
    assert load(tmp_path / 'results')[RUN.name]['seed'] == 1


def test_run_skips_what_has_finished_and_resumes_the_rest(tmp_path, monkeypatch, capsys):
    finished, interrupted, failing = (Run('detect_swin', seed) for seed in range(3))
    for run in (finished, interrupted):
        (tmp_path / run.name).mkdir()
    write_run(tmp_path / finished.name, finished)
    running.write_journal(tmp_path / interrupted.name, [])
    assert running.status(tmp_path / interrupted.name) == 'interrupted'
    calls = []

    def call(words, folder):
        calls.append((folder.name, words))
        if folder.name == failing.name:
            return 1
        if words[0] == 'train.py':
            (folder / 'best_coco_bbox_mAP_epoch_2.pth').touch()
        else:
            path = folder / running.TESTED / 'time' / 'time.json'
            path.parent.mkdir(parents=True)
            path.write_text('{}')
        return 0

    monkeypatch.setattr(running, 'call', call)
    words = ['experiments', 'run', 'e1', '--variants', 'detect_swin', '--runs', str(tmp_path)]
    monkeypatch.setattr(sys, 'argv', words)
    assert command.main() == 1
    assert [name for name, _ in calls] == [interrupted.name] * 2 + [failing.name] * running.STARTS
    trained = calls[0][1]
    assert trained[0] == 'train.py' and '--resume' in trained
    assert 'randomness.seed=1' in trained
    tested = calls[1][1]
    assert tested[0] == 'test.py' and tested[2].endswith('best_coco_bbox_mAP_epoch_2.pth')
    output = capsys.readouterr().out
    assert f'{finished.name}: finished' in output
    assert f'did not finish: {failing.name}' in output
    calls.clear()
    assert command.main() == 1
    assert {name for name, _ in calls} == {failing.name}


def test_a_selection_without_runs_is_refused(monkeypatch, capsys):
    for words in ('--seeds 3', '--variants no_such_config'):
        words = ['experiments', 'run', 'e7-raccoons', *words.split()]
        monkeypatch.setattr(sys, 'argv', words)
        with pytest.raises(SystemExit) as refusal:
            command.main()
        assert refusal.value.code == 2
        expected = 'expected some of raccoons, raccoons_random and of the seeds 0, 1, 2, got no run'
        assert expected in capsys.readouterr().err


def test_the_journal_says_how_a_script_ended(tmp_path):
    assert running.call(['train.py', 'no_such_config.py'], tmp_path) != 0
    (entry,) = running.read_journal(tmp_path)
    assert entry['exit_status'] not in (0, None)
    assert 'no such config' in (tmp_path / 'output.log').read_text()


ONE = Experiment('an experiment', {'a': 'A', 'b': 'B', 'c': 'C'}, (Metric('AP', 'ap'),))


def records(**scores):
    """Return records of `ONE` with these scores, one per seed."""
    found = {}
    for variant, values in scores.items():
        for seed, value in enumerate(values):
            run = Run(variant, seed)
            found[run.name] = {
                'test': {'AP': value},
                'parameters': 2_680_000,
                'cpu_minutes': 4.0,
                'wall_minutes': 8.0,
                'resumed': seed,
                'trees': [TREES],
                'machine': {'processor': 'a CPU', 'torch': '2'},
                'validation': [[1, value - 1], [2, value]],
            }
    return found


def test_a_table_says_how_many_seeds_there_are():
    rows = tables.table(ONE, records(a=[50.0, 51.0, 52.5], b=[49.0])).splitlines()
    assert rows[2] == '| A | 3 of 3 | 2.68 M | 51.2 (50.0 to 52.5) | 4.0 |'
    assert rows[3] == '| B | 1 of 3 | 2.68 M | 49.0 | 4.0 |'
    assert rows[4] == '| C | 0 of 3 |  | not run |  |'
    assert report.experiment_block('e', ONE, {}) == 'Not run: A, B, C.'
    rows = tables.table(ONE, {}, [{'name': 'a constant', 'AP': 12.34}]).splitlines()
    assert rows[-1] == '| *a constant* |  |  | 12.3 |  |'


def test_runs_of_several_machines_are_counted_apart():
    of_two = records(a=[50.0, 51.0, 52.5])
    of_two['a-2']['machine'] = {'processor': 'another CPU', 'torch': '3'}
    text = ' '.join(tables.account(ONE, of_two).split())
    assert text.startswith('3 of 9 runs have finished: 12 minutes of CPU in 24 minutes ')
    assert 'Machines (runs): a CPU (2), another CPU (1); one thread, torch 2, 3.' in text


def test_no_line_of_the_page_begins_a_numbered_list():
    lines = report.PAGE.read_text().splitlines()
    assert not [line for line in lines if re.match(r'\d+[.)] ', line)]


def verdict(test_images, **scores):
    experiment = replace(ONE, test_images=test_images)
    return ' '.join(tables.verdict(experiment, records(**scores)).split())


A = [50.0, 51.0, 52.5]


def test_a_gap_above_the_sampling_error_tells_two_variants_apart():
    """Of 10,000 images, the difference of two accuracies near 50 has an error of 0.7 points."""
    far = verdict(10_000, a=A, b=[49.2, 48.0, 49.0], c=[49.5, 53.0, 50.0])
    assert far.startswith('Told apart by AP, of 3 pairs compared: A above B (a gap of 0.8 ')
    assert 'C' not in far
    near = verdict(10_000, a=A, b=[49.4, 48.0, 49.0])
    assert near == 'Told apart by AP, of 1 pair compared: none.'
    few_images = verdict(1_000, a=A, b=[49.2, 48.0, 49.0])
    assert few_images.endswith('none.')
    assert 'Nothing can be compared' in verdict(10_000, a=A, b=[1.0, 2.0])


def test_nothing_is_told_apart_if_the_sampling_error_is_not_known():
    text = verdict(None, a=A, b=[1.0, 2.0, 3.0], c=[51.0, 53.0, 50.0])
    assert text.startswith('Nothing is told apart by AP: ')
    assert text.endswith('seeds: C above B by 47.0; A above B by 47.0.')
    assert '3 pairs compared' in text


def test_runs_that_kept_their_boxes_are_told_apart_by_ap():
    """Standard errors of 3 and 4 points make one of 5 of the difference."""
    found = records(a=A, b=[46.0, 47.0, 44.0], c=[43.0, 44.9, 42.0])
    for name, record in found.items():
        record['standard_error'] = {'AP': 4.0 if name.startswith('a') else 3.0}
    text = ' '.join(tables.verdict(ONE, found).split())
    assert text == (
        'Told apart by AP, of 3 pairs compared: A above C (a gap of 5.1 between the nearest seeds, '
        'sampling error 5.0).'
    )


def test_pairs_without_a_sampling_error_are_counted_beside_the_others():
    found = records(a=A, b=[46.0, 47.0, 44.0], c=[1.0, 2.0, 3.0])
    for name, record in found.items():
        if not name.startswith('c'):
            record['standard_error'] = {'AP': 1.0}
    text = ' '.join(tables.verdict(ONE, found).split())
    assert text == (
        'Told apart by AP, of 3 pairs compared: A above B (a gap of 3.0 between the nearest seeds, '
        'sampling error 1.4). Of 2 pairs the sampling error is not known, because these runs kept '
        'no predictions; with a gap between their nearest seeds: A above C by 47.0; B above C by '
        '41.0.'
    )


def test_a_run_that_is_made_again_leaves_the_earlier_one_on_the_page(tmp_path):
    earlier = records(a=[50.0, 51.0], b=[7.0])
    again = records(a=[48.0, 49.0])
    for day, found in enumerate((earlier, again), start=1):
        for name, record in found.items():
            variant, seed = name.split('-')
            started = f'2026-11-0{day} 10:00:0{seed}'
            record.update(run=name, variant=variant, seed=int(seed), started=started)
            save(record, tmp_path)
            save(record, tmp_path)  # collected twice
    assert load(tmp_path)['a-0']['test'] == {'AP': 48.0}
    rows = tables.earlier_table([ONE], load_earlier(tmp_path)).splitlines()
    assert rows[2:] == ['| an experiment, A: AP | 50.5 | 50.0, 51.0 | 2026-11-01 | a CPU |  |']
    assert tables.earlier_table([ONE], []) == ''


def write_boxes(folder, found):
    """Write what a test keeps of photographs with one object each, of which these are found."""
    boxes = {'category_id': 0, 'bbox': [0, 0, 10, 10]}
    numbers = range(len(found))
    objects = [{**boxes, 'id': n + 1, 'image_id': n, 'area': 100, 'iscrowd': 0} for n in numbers]
    truth = {
        'images': [{'id': number} for number in numbers],
        'annotations': objects,
        'categories': [{'id': 0, 'name': 'thing'}],
        'info': {},
    }
    results = [{**boxes, 'image_id': number, 'score': 0.9} for number in numbers if found[number]]
    (folder / 'boxes.gt.json').write_text(json.dumps(truth))
    (folder / 'boxes.bbox.json').write_text(json.dumps(results))


def test_the_standard_error_of_ap_is_that_of_other_photographs(tmp_path):
    assert standard_error(tmp_path) is None
    write_boxes(tmp_path, [True] * 100)
    assert standard_error(tmp_path) == 0
    write_boxes(tmp_path, [True, False] * 50)  # AP is the share that is found
    assert standard_error(tmp_path) == pytest.approx(100 * math.sqrt(0.25 / 100), rel=0.1)


def test_the_standard_error_of_miou_is_that_of_other_photographs(tmp_path):
    """Two classes, of which every image has as many pixels; one is found in half of the images."""
    metric = KeptIoUMetric(kept=str(tmp_path / 'areas.npy'))
    metric.dataset_meta = {'classes': ('sky', 'road')}
    truth = torch.tensor([[[0, 1]]])
    for number in range(100):
        found = truth if number % 2 else torch.zeros_like(truth)
        sample = {'pred_sem_seg': {'data': found}, 'gt_sem_seg': {'data': truth}}
        metric.process({}, [sample])
    assert metric.evaluate(100)['mIoU'] == pytest.approx(100 * (2 / 3 + 1 / 2) / 2, abs=0.01)
    agreed, either = np.load(tmp_path / 'areas.npy').sum(0)
    assert agreed.tolist() == [100, 50] and either.tolist() == [150, 100]
    # With a share p of found roads, IoU is 1 / (2 - p) and p: its derivative at p = 1/2 is
    # (4/9 + 1) / 2, and p has a standard error of sqrt(p (1 - p) / 100).
    expected = 100 * (4 / 9 + 1) / 2 * math.sqrt(0.25 / 100)
    assert standard_error(tmp_path) == pytest.approx(expected, rel=0.1)


def test_standard_errors_are_a_row_of_the_table_of_starts():
    experiment = replace(ONE, variants={'a': 'pretrained', 'b': 'random'})
    found = records(a=[50.0, 51.0, 52.5], b=[49.0])
    assert 'standard error' not in tables.starts_table([experiment], found)
    for seed in range(3):
        found[f'a-{seed}']['standard_error'] = {'AP': 3.0 + seed}
    last = tables.starts_table([experiment], found).splitlines()[-1]
    assert last == '| an experiment, standard error of AP | 4.0 (3.0 to 5.0) |  |  |'


def test_the_sampling_error_is_that_of_a_bootstrap_over_images():
    generator = np.random.default_rng(0)
    first, second = (generator.random((2, 1000)) < 0.6).astype(float)
    samples = generator.integers(0, 1000, (4000, 1000))
    other_samples = generator.integers(0, 1000, (4000, 1000))
    differences = first[samples].mean(1) - second[other_samples].mean(1)
    runs = [{'test': {'AP': 100 * hits.mean()}} for hits in (first, second)]
    error = tables.sampling_error(replace(ONE, test_images=1000), runs)
    assert error == pytest.approx(100 * differences.std(), rel=0.05)


def test_the_code_of_every_record_is_in_the_history():
    """A record that names none says so on the page; it must not name what nobody can find."""
    try:
        shallow = git('rev-parse', '--is-shallow-repository')
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip('not a git repository')
    if shallow == 'true':
        pytest.skip('the history is not here')
    named = set()
    for record in [*load(RESULTS).values(), *recall.load().values()]:
        for state in record['trees']:
            assert state.keys() == set(running.CODE)
            named.update(state.items())
    paths = [
        f'{commit}:{folder}'
        for commit in git('rev-list', 'HEAD').split()
        for folder in running.CODE
    ]
    ids = git('cat-file', '--batch-check=%(objectname)', input='\n'.join(paths)).splitlines()
    found = set()
    for path, tree in zip(paths, ids, strict=True):
        found.add((path.partition(':')[2], tree[:12]))
    assert named
    assert named <= found


def test_a_record_names_the_trees_of_the_last_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks.records, 'ROOT', tmp_path)
    assert trees(['code']) == {}
    for words in ('init -q', 'config user.email a@b.c', 'config user.name a'):
        subprocess.run(['git', *words.split()], cwd=tmp_path, check=True)
    (tmp_path / 'code').mkdir()
    (tmp_path / 'code' / 'a.py').write_text('1')
    subprocess.run(['git', 'add', '.'], cwd=tmp_path, check=True)
    subprocess.run(['git', 'commit', '-qm', 'one'], cwd=tmp_path, check=True)
    (tmp_path / 'other').touch()
    clean = trees(['code'])
    assert len(clean['code']) == 12
    (tmp_path / 'code' / 'a.py').write_text('2')
    assert trees(['code']) == {'code': clean['code'] + '+'}


def test_figures_are_drawn_of_what_there_is(tmp_path):
    report.draw(ONE, records(a=[50.0, 51.0, 52.5], b=[49.0]), tmp_path / 'figure.png')
    assert (tmp_path / 'figure.png').stat().st_size > 5000


def test_a_table_is_written_between_its_markers():
    end = '<!-- end of e1 -->'
    page = f'# Title\n\n<!-- e1: written by a script -->\n\nold\n\n{end}\n\nLast line.\n'
    assert report.replace_block(page, 'e1', 'new') == page.replace('old', 'new')
    with pytest.raises(ValueError, match='e1: expected markers'):
        report.replace_block('no markers', 'e1', 'a table')


def test_the_pages_print_the_collected_results():
    """After `collect` or `networks`, `report` has to be run."""
    found = load(RESULTS)
    page = report.PAGE.read_text()
    assert report.page_with_results(page, found) == page
    readme = report.README.read_text()
    assert report.readme_with_results(readme, found) == readme
    for key, experiment in EXPERIMENTS.items():
        if key not in STARTS:
            assert report.figure_path(key).exists() == tables.has_results(experiment, found)
    assert report.figure_path('recall').exists() == bool(recall.load())
    assert report.figure_path('e7').exists() == bool(report.trained_starts(found))


def test_recipes_and_the_page_on_boxes_print_the_collected_results():
    found = load(RESULTS)

    def scores(variant, metric):
        return [found[f'{variant}-{seed}']['test'][metric] for seed in SEEDS]

    for config, variant, metric, sentence in (
        ('faster_rcnn_pola_swin_small', 'detect', 'AP', 'Box AP on the test split'),
        ('semantic_fpn_pola_swin_small', 'segment', 'mIoU', 'test split of CamVid mIoU'),
    ):
        text = ' '.join((ROOT / 'configs' / f'{config}.py').read_text().split())
        means = [np.mean(scores(name, metric)) for name in (variant, f'{variant}_pola_swin')]
        assert f'{sentence} is {means[0]:.1f}, from random weights {means[1]:.1f}' in text
    page = (ROOT / 'docs' / 'in_your_own_project.md').read_text()
    for metric in ('AP', 'AP50'):
        cells = [value / 100 for value in scores('detect', metric)]
        assert re.search(rf'{metric} (is )?{min(cells):.2f} to {max(cells):.2f}', page)


def test_prose_on_the_pretrained_start_prints_the_collected_results():
    found = load(RESULTS)

    def scores(variant, metric):
        return [found[f'{variant}-{seed}']['test'][metric] for seed in SEEDS]

    short = ' '.join(report.PAGE.read_text().split())
    for variant, random, metric, sentence in (
        ('raccoons', 'raccoons_random', 'AP', 'raccoons reaches AP {:.0f} instead of {:.0f},'),
        ('segment', 'segment_pola_swin', 'mIoU', 'of streets mIoU {:.0f} instead of {:.0f},'),
        ('digits', 'digits_random', 'accuracy', 'digits {:.0f} % instead of {:.0f},'),
    ):
        means = [np.mean(scores(name, metric)) for name in (variant, random)]
        assert sentence.format(*means) in short
    cells = [np.mean(scores(name, 'AP')) for name in ('detect', 'detect_pola_swin')]
    assert 'cells reaches AP {:.1f} instead of {:.1f}, which is not'.format(*cells) in short


def test_prose_on_recall_prints_the_records():
    found = recall.load()
    text = ' '.join(report.PAGE.read_text().split())

    def span(rate, *variants):
        """Return the smallest and the largest accuracy, without decimals."""
        own = [record for name in variants for record in recall.at_rate(name, rate, found)]
        tested = [record['test'] for record in own]
        return f'{min(tested):.0f} to {max(tested):.0f} %'

    polas = [name for name in recall.VARIANTS if name.startswith('pola_')]
    pluses = [name for name in recall.VARIANTS if name.startswith('plus_')]
    three = (span(3e-3, *polas), span(3e-3, *pluses), span(3e-3, 'elu'))
    assert '{}, {}, and {} with elu + 1.'.format(*three) in text
    assert f'finds one of 128 pairs in {three[0]}' in text
    assert span(1e-3, *polas) == '99 to 100 %'  # within what the page says of both rates
    assert f'without the power (exponents of 1) PolaFormer finds {span(3e-3, "no_power")}' in text
    assert f'which has no signs, {span(3e-3, "power")}' in text
    assert f'convolution and gate, elu + 1 finds {span(3e-3, "elu_parts")}' in text
    assert f'and at 0.01 {span(1e-2, "flatten")}' in text
    of_flatten = sorted(record['test'] for record in recall.at_rate('flatten', 3e-3, found))
    least, middle, most = (f'{accuracy:.0f}' for accuracy in of_flatten)
    assert f'two seeds find {middle} and {most} % and one stays at {least} %' in text
    (first,) = recall.at_rate('flatten', 1e-3, found)
    assert f'At 0.001, where one seed ran, it finds {first["test"]:.0f} %' in text
    assert f'There it finds {span(1e-3, "elu")} of 128 pairs' in text
    assert f'at 0.001, its best rate, {span(1e-3, "elu")}' in text
    limit = 0
    gains = []
    for name in pluses:
        for record in recall.at_rate(name, 3e-3, found):
            values = [value for _, value in record['validation']]
            gains.append(np.mean(values[-10:]) - np.mean(values[-20:-10]))
            limit += len(values) * recall.EVERY == recall.MOST_STEPS
    assert len(gains) == 9
    assert limit == 2 and 'Two of its nine runs at 128 pairs reached the limit' in text
    assert f'is {min(gains):.1f} to {max(gains):.1f} points above the mean' in text
    assert sum(gain > 1 for gain in gains) == 6 and 'in six by more than one point' in text


def test_readme_says_which_starts_are_told_apart():
    found = load(RESULTS)
    text = ' '.join(report.README.read_text().split())
    better = 'pretrained above random weights (a gap of '
    verdicts = {key: tables.verdict(EXPERIMENTS[key], found) for key in report.README_SENTENCES}
    verdicts = {key: ' '.join(verdict.split()) for key, verdict in verdicts.items()}
    assert better in verdicts['e7-raccoons']
    assert better not in verdicts['e7-cells']
    assert ' from random weights, which so small a split does not tell apart. ' in text
    assert 'is not known' in verdicts['e7-streets']
    assert '; the error of these two is not known. ' in text


def test_weights_of_two_runs_are_compared_bit_for_bit(tmp_path):
    weights = {'w': torch.randn(3)}
    for name, change in (('first', 0.0), ('second', 0.0), ('third', 1e-7)):
        folder = tmp_path / name
        folder.mkdir()
        moments = {'step': torch.tensor(5.0), 'exp_avg': torch.ones(3) + change}
        content = {'state_dict': weights, 'optimizer': {'state': {0: moments}}}
        torch.save(content, folder / 'iter_5.pth')
        (folder / 'last_checkpoint').write_text(str(folder / 'iter_5.pth'))
    first = tmp_path / 'first'
    assert resume_check.differing_tensors(first, tmp_path / 'second') == []
    differing = resume_check.differing_tensors(first, tmp_path / 'third')
    assert differing == ['optimizer.0.exp_avg']


def test_the_step_of_the_resumed_checkpoint_is_read_from_the_log(tmp_path):
    log = '--resume: /a: no checkpoint yet\n--resume: /a/iter_150.pth, after 150 steps\nmore\n'
    (tmp_path / 'output.log').write_text(log)
    assert resume_check.resumed_from(tmp_path) == 150


def test_networks_of_another_machine_keep_their_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(networks, 'RESULTS', tmp_path)
    rows = [{'variant': 'segment_pola_pvt', 'softmax': 0.9}]
    (tmp_path / 'networks.json').write_text(json.dumps(rows))
    assert networks.analyze_networks(tmp_path / 'no_runs') == rows
    assert json.loads((tmp_path / 'networks.json').read_text()) == rows


def test_numbers_of_trained_networks():
    torch.manual_seed(0)
    arch = {'embed_dims': (8, 16, 24, 32), 'depths': (1, 1, 1, 1), 'num_heads': (1, 2, 3, 4)}
    model = PolaPVT({**arch, 'mlp_ratios': (2, 2, 2, 2)}, pretrain_img_size=64)
    found = [analysis.observe(model, torch.randn(1, 3, 64, 64), layer_numbers) for _ in range(2)]
    rows = mean_rows('detect_pola_pvt', found, images=2)
    assert len(rows) == 4
    for row in rows:
        assert row['networks'] == 1
        assert 0 < row['both'] <= 1 and 0 < row['linear'] <= 1.0001
        assert row['exponents'] == [3.0, 3.0]
        low, high = row['correlation_range']
        assert -1 <= low <= row['correlation'] <= high <= 1
    assert 'detector, Pola-PVT, stage 4, block 1' in tables.networks_table(rows)


def test_the_first_experiment_is_the_recipe_but_from_random_weights():
    recipe = Config.fromfile(ROOT / 'configs' / 'faster_rcnn_pola_swin_small.py')
    experiment = Config.fromfile(Run('detect_pola_swin', 0).config)
    assert recipe.model.backbone.pop('init_cfg').checkpoint == 'mmpola://pola_swin_nano'
    assert experiment.model.backbone.pop('init_cfg') is None
    assert experiment.model == recipe.model
    assert experiment.train_pipeline == recipe.train_pipeline


def test_a_query_asks_for_the_value_of_one_of_the_keys():
    batch = recall.split(7, 5, pairs=32)
    assert torch.equal(batch.keys, recall.split(7, 5, pairs=32).keys)
    for keys, values, asked, answers in zip(*batch, strict=True):
        memory = dict(zip(keys.tolist(), values.tolist(), strict=True))
        assert len(memory) == 32
        assert [memory[key] for key in asked.tolist()] == answers.tolist()


@pytest.mark.parametrize('variant', recall.LAYERS)
def test_queries_read_the_pairs_and_not_each_other(variant):
    torch.manual_seed(0)
    network = recall.Network(variant, pairs=8)
    batch = recall.split(7, 2, pairs=8)
    first = batch.asked.clone()
    first[:, 1:] = 127
    kept = network(batch)[:, 0]
    torch.testing.assert_close(network(batch._replace(asked=first))[:, 0], kept)
    assert not torch.allclose(network(batch._replace(values=batch.values.flip(1)))[:, 0], kept)


def test_training_ends_when_the_curve_is_flat():
    steps = range(100, recall.MOST_STEPS + 100, 100)
    rising = [(step, 90 * step / recall.MOST_STEPS) for step in steps]
    assert not recall.is_over(rising[:-1])
    assert recall.is_over(rising) and not recall.is_flat(rising)
    flat = [(step, 50.0) for step in range(100, 1600, 100)]
    assert not recall.is_over(flat[:-1])
    assert recall.is_over(flat)
    assert recall.is_over([(100, 99.9)])


def recall_records(**scores):
    """Return records of 64 pairs at the rate 0.003, which is the best; one score per seed."""
    found = {}
    for variant, values in scores.items():
        for case in recall.choice_cases(variant, {}):
            found[case.name] = {'test': 1.0, 'cpu_minutes': 1.0, 'validation': [[100, 1.0]]}
        for seed, value in enumerate(values):
            curve = [[100, 50.0], [200, value], [1500, value]]
            name = recall.Case(variant, 64, 3e-3, seed).name
            found[name] = {'test': value, 'cpu_minutes': 1.0, 'validation': curve}
    return found


def test_recall_shows_the_rate_that_validation_chose(tmp_path):
    found = recall_records(softmax=[95.0, 96.0, 97.0], elu=[60.0])
    lines = recall.block(found, tmp_path / 'recall.png').splitlines()
    assert lines[2].startswith('| softmax | 0.003 | not run | 96.0 (95.0 to 97.0) | not run |')
    assert lines[2].endswith('| 200 / 200 / 200 |')
    assert '| 60.0, 1 of 3 seeds |' in lines[3] and lines[3].endswith('| - |')
    assert lines[4].startswith('| linear (ReLU) | not run |')
    row = '| linear (elu + 1) | 1.0, rising (-) | 60.0 (-) | 1.0, rising (-) |'
    assert row in lines
    assert ' have ended by the rules above; of the 8 that have a record, ' in lines[-2]
    recall.draw(found, tmp_path / 'recall.png')
    assert (tmp_path / 'recall.png').stat().st_size > 5000


def test_recall_shows_parts_at_every_rate_that_was_tried():
    scores = {('pola_open', 3e-3): 99.0, ('flatten', 1e-2): 26.6, ('flatten', 1e-3): 80.0}
    found = {}
    for (variant, rate), score in scores.items():
        name = recall.Case(variant, 128, rate, 0).name
        curve = [[100, score], [1500, score]]
        found[name] = {'test': score, 'validation': curve, 'parameters': 50000}
    lines = recall.parts_table(found).splitlines()
    assert lines[2] == '| 128 pairs | rate 0.001 | rate 0.003 | rate 0.01 | parameters |'
    one = '1 of 3 seeds'
    assert lines[4] == f'| PolaFormer, open | not run | 99.0, {one} | not run | 50,000 |'
    row = f"| with FLatten's features | 80.0, {one} | not run | 26.6, {one} | 50,000 |"
    assert row in lines


def test_of_rates_that_solve_the_task_the_fastest_is_chosen():
    curves = {1e-3: [[400, 100.0]], 3e-3: [[200, 99.95]], 1e-2: [[300, 99.9]]}
    found = {}
    for case in recall.choice_cases('elu', {}):
        assert recall.chosen_rate('elu', found) is None
        found[case.name] = {'validation': curves[case.rate]}
    assert recall.chosen_rate('elu', found) == 3e-3


def train_in_no_time(monkeypatch, folder, best_rate):
    """Let `recall` write its records; the accuracy falls with a rate's distance."""
    trained = []

    def train(case):
        trained.append(case)
        last = 99.9 - abs(math.log(case.rate / best_rate))
        return {'run': case.name, 'validation': [[100, 0.0], [recall.MOST_STEPS, last]]}

    monkeypatch.setattr(recall, 'RESULTS', folder)
    monkeypatch.setattr(recall, 'train', train)
    return trained


def test_recall_skips_what_has_a_record_that_ended(tmp_path, monkeypatch):
    trained = train_in_no_time(monkeypatch, tmp_path, 3e-3)
    recall.run_all()
    of_a_variant = 3 + 3 * 3 - 1
    at_the_other_rate = 3  # with 128 pairs; the chosen rate is one of the two
    of_variants = 9 * of_a_variant + (3 + 3) * at_the_other_rate
    of_parts = 6 * (3 + 3 + at_the_other_rate)
    assert len(trained) == len(set(trained)) == of_variants + of_parts
    recall.run_all()
    assert len(trained) == len(set(trained))
    record = {'run': trained[0].name, 'validation': [[100, 0.0], [3000, 50.0]]}  # still rising
    write_record(record, tmp_path)
    recall.run_all()
    assert trained[-1] == trained[0]


@pytest.mark.parametrize(('best', 'tried'), [(3e-4, 5), (2e-3, 3), (1e-2, 4), (3e-2, 5)])
def test_the_best_rate_lies_between_others_that_were_tried(tmp_path, monkeypatch, best, tried):
    train_in_no_time(monkeypatch, tmp_path, best)
    monkeypatch.setattr(recall, 'LAYERS', {'elu': recall.LAYERS['elu']})
    recall.run_all()
    records = recall.load(tmp_path)
    assert len(recall.choice_cases('elu', records)) == tried
    assert abs(math.log(recall.chosen_rate('elu', records) / best)) < 0.6
