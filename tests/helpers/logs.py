"""Training logs as MMEngine writes them, for the tests of what reads them."""

import json


def training(step, epoch=None, **values):
    row = {'lr': 0.1 / step, 'loss': 10.0 / step, 'time': 0.5, 'data_time': 0.1, 'iter': step, 'step': step, **values}
    return row if epoch is None else {'epoch': epoch, **row}


def write_run(work, name, rows, tail=''):
    """Write the folder of a run as MMEngine does; returns its scalars.json."""
    folder = work / name / 'vis_data'
    folder.mkdir(parents=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / 'scalars.json').write_text('\n'.join(lines) + '\n' + tail)
    (folder / f'{name}.json').write_text('\n'.join(lines))  # MMEngine writes the same rows a second time
    return folder / 'scalars.json'


def by_epoch(epochs, first=1, factor=1.0, per_epoch=4):
    """Rows at every second step of the epochs from `first` to `epochs`, each with a validation row."""
    rows = []
    for epoch in range(first, epochs + 1):
        start = (epoch - 1) * per_epoch
        rows += [training(start + step, epoch, loss=factor * (start + step)) for step in (2, 4)]
        rows.append({'accuracy/top1': factor * epoch, 'accuracy/top5': 50.0, 'time': 0.2, 'step': epoch})
    return rows
