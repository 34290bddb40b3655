"""Which panels and curves are drawn of which logs."""

from mmpola.engine.curves import COMPONENTS, asked_panels, default_panels, draw
from mmpola.engine.logs import read_log
from tests.helpers.logs import training, write_run


def panels_of(panels):
    return [(panel.title, panel.value, panel.position, [curve.key for curve in panel.curves]) for panel in panels]


def test_one_log_shows_the_largest_components_of_its_loss_and_the_main_metrics(tmp_path):
    parts = {f's{index}.loss_cls': float(index) for index in range(COMPONENTS + 2)}
    metrics = {'coco/bbox_mAP': 0.3, 'coco/bbox_mAP_50': 0.5, 'coco/bbox_mAP_s': -1.0, 'coco/segm_mAP': 0.2, 'PQ': 0.1}
    rows = [training(step, 1, **parts, base_lr=0.1, images_per_second=80.0) for step in (1, 2)]
    rows[1]['data_share'] = 0.25  # mmpola's throughput hook logs it; else MMEngine's times give it
    write_run(tmp_path, '1', [*rows, {**metrics, 'time': 0.1, 'data_time': 0.0, 'step': 1}])
    panels = default_panels([read_log(tmp_path, 'work')])
    largest = [f's{index}.loss_cls' for index in range(COMPONENTS + 1, 1, -1)]
    step = 'training step'
    assert panels_of(panels) == [
        ('Training loss and its largest components', 'loss', step, ['loss', *largest]),
        ('Learning rate', 'first parameter group', step, ['lr']),  # base_lr is not scaled by auto_scale_lr
        ('Validation: coco', 'value', 'epoch', ['coco/bbox_mAP', 'coco/segm_mAP']),
        ('Validation', 'value', 'epoch', ['PQ']),
        ('Time per step', 'seconds', step, ['time']),
        ('Waiting for data', '% of the step', step, ['data share']),
        ('Images per second', '1 / s', step, ['images_per_second']),
    ]
    assert panels[5].curves[0].points == ([1, 2], [20.0, 25.0])


def test_several_logs_share_each_panel_but_epochs_and_steps_do_not_mix(two_logs):
    logs = [read_log(path, path.name) for path in two_logs]
    panels = default_panels(logs)
    assert panels_of(panels)[0] == ('Training loss', 'loss', 'training step', ['loss', 'loss'])
    assert [(panel.title, panel.position) for panel in panels if panel.title.startswith('Validation')] == [
        ('Validation: accuracy', 'epoch'),
        ('Validation', 'step'),
        ('Validation: accuracy', 'step'),
    ]
    assert [curve.log for curve in panels[0].curves] == [0, 1]


def test_each_key_asked_for_has_a_panel(two_logs):
    logs = [read_log(path, path.name) for path in two_logs]
    assert panels_of(asked_panels(logs, ['loss', 'accuracy/top1', 'time'])) == [
        ('Training: loss', 'loss', 'training step', ['loss', 'loss']),
        ('Validation: accuracy/top1', 'top1', 'epoch', ['accuracy/top1']),
        ('Validation: accuracy/top1', 'top1', 'step', ['accuracy/top1']),
        ('Training: time', 'seconds', 'training step', ['time', 'time']),
        ('Validation: time', 'seconds', 'epoch', ['time']),
    ]


def test_the_figure_has_titles_units_labels_and_the_curves(two_logs):
    logs = [read_log(path, path.name) for path in two_logs]
    figure = draw(default_panels(logs), ['slow', 'fast'])
    loss, rate = figure.axes[:2]
    assert (loss.get_title(), loss.get_xlabel(), loss.get_ylabel()) == ('Training loss', 'training step', 'loss')
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ['slow', 'fast']
    assert rate.get_ylim()[0] == 0
    drawn = loss.get_lines()[1]
    assert (drawn.get_xdata().tolist(), drawn.get_ydata().tolist()) == ([10, 20, 30], [0.1, 0.05, 1 / 30])
    accuracy = next(axes for axes in figure.axes if axes.get_title() == 'Validation: accuracy')
    texts = [text.get_text() for text in accuracy.get_legend().get_texts()]
    assert texts == ['slow: accuracy/top1', 'slow: accuracy/top5']
    styles = {(line.get_color(), line.get_linestyle()) for line in accuracy.get_lines()}
    assert len({colour for colour, _ in styles}) == 1
    assert len({dash for _, dash in styles}) == 2


def test_of_an_odd_number_of_panels_the_first_is_wide(two_logs):
    logs = [read_log(two_logs[0], 'slow')]
    figure = draw(asked_panels(logs, ['loss', 'lr', 'accuracy/top1']), ['slow'])
    spans = [(axes.get_subplotspec().rowspan, axes.get_subplotspec().colspan) for axes in figure.axes]
    assert spans == [(range(0, 1), range(0, 2)), (range(1, 2), range(0, 1)), (range(1, 2), range(1, 2))]
    assert figure.get_suptitle() == 'slow'
