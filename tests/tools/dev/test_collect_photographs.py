"""Photographs of repositories become one folder of small pictures without labels."""

import csv
import io
import re
import subprocess

import pytest
from PIL import Image

from tools.dev import collect_photographs
from tools.dev.collect_photographs import main

COLUMNS = ('name', 'kind', 'repository', 'commit', 'pattern', 'count', 'terms')


def jpeg(width, height, colour, orientation=1):
    """Return the bytes of a JPEG file; orientation is the EXIF tag of a turned camera."""
    picture = Image.new('RGB', (width, height), colour)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    picture.save(file, 'JPEG', exif=exif)
    return file.getvalue()


def commit(folder, files):
    """Make a repository of files, a dict of contents by path, and return the hash of its commit."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    identity = ('-c', 'user.name=a', '-c', 'user.email=a@b')
    for arguments in (('init', '-q'), ('add', '.'), (*identity, 'commit', '-q', '-m', 'a')):
        subprocess.run(['git', '-C', folder, *arguments], check=True)
    command = ['git', '-C', folder, 'rev-parse', 'HEAD']
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """Return a folder of two repositories that a table names, with a third that is absent."""
    red = jpeg(400, 300, 'red')
    files = {
        'dogs/large.jpg': red,
        'dogs/same again.jpg': red,
        'dogs/turned.jpg': jpeg(100, 200, 'green', orientation=6),
        'dogs/icon.jpg': jpeg(63, 200, 'blue'),
        'dogs/damaged.jpg': red[:300],
        'dogs/huge.jpg': jpeg(100, 100, 'blue') + bytes(4 * 2**20),
        'dogs/tested on.jpg': jpeg(100, 100, 'pink'),
        'figures/plot.jpg': jpeg(100, 100, 'white'),
        'README.md': b'Dogs.',
    }
    folder = tmp_path / 'mirror'
    dogs = commit(folder / 'someone+dogs' / 'repo', files)
    pets = {'red.jpg': red, 'cat.jpg': jpeg(80, 90, 'black')}
    cats = commit(folder / 'someone+cats' / 'repo', pets)
    rows = (
        ('dogs', 'dogs', 'someone/dogs', dogs, '^dogs/', '2', 'CC0'),
        ('lost', 'fish', 'someone/lost', dogs, '', '9', 'none'),
        ('cats', 'cats', 'someone/cats', cats, '', '1', 'no terms stated'),
    )
    table = tmp_path / 'table.csv'
    with table.open('w', newline='') as file:
        csv.writer(file).writerows((COLUMNS, *rows))
    left_out = tmp_path / 'left_out.txt'
    command = [
        'git',
        '-C',
        folder / 'someone+dogs' / 'repo',
        'rev-parse',
        'HEAD:dogs/tested on.jpg',
    ]
    left_out.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    monkeypatch.setattr(collect_photographs, 'TABLE', table)
    monkeypatch.setattr(collect_photographs, 'LEFT_OUT', left_out)
    return folder


def sizes(folder):
    return sorted(Image.open(path).size for path in folder.glob('*'))


def test_photographs_are_small_and_upright_and_each_is_there_once(mirror, tmp_path, capsys):
    photographs = tmp_path / 'photographs'
    main([str(photographs), '--mirror', str(mirror)])
    assert sizes(photographs / 'dogs') == [(200, 100), (256, 192)]
    assert sizes(photographs / 'cats') == [(80, 90)]
    assert {path.name for path in photographs.iterdir()} == {'dogs', 'cats', 'READY'}
    assert (photographs / 'READY').read_text() == 'dogs 2\ncats 1\n'
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 1
    assert out[0].startswith('lost: ')


def test_a_second_run_does_what_is_left(mirror, tmp_path, capsys):
    photographs = tmp_path / 'photographs'
    main([str(photographs), '--mirror', str(mirror), '--only', 'dogs'])
    assert (photographs / 'READY').read_text() == 'dogs 2\n'
    picture = next((photographs / 'dogs').iterdir())
    written = picture.stat().st_mtime_ns
    (photographs / 'cats.part').mkdir()
    (photographs / 'cats.part' / 'half.jpg').write_bytes(b'')
    main([str(photographs), '--mirror', str(mirror), '--only', 'dogs', 'cats'])
    assert picture.stat().st_mtime_ns == written
    assert sizes(photographs / 'cats') == [(80, 90)]
    assert not (photographs / 'cats.part').exists()
    next((photographs / 'cats').iterdir()).unlink()
    capsys.readouterr()
    main([str(photographs), '--mirror', str(mirror), '--only', 'cats'])
    assert capsys.readouterr().out == 'cats: expected 1 photographs, got 0\n'


def test_repositories_are_fetched_at_their_commit(mirror, tmp_path, monkeypatch):
    """Git reads the addresses of the network from this folder instead."""
    photographs = tmp_path / 'photographs'
    for name in ('dogs', 'cats'):
        (mirror / 'someone').mkdir(exist_ok=True)
        (mirror / f'someone+{name}' / 'repo').rename(mirror / 'someone' / name)
    monkeypatch.setenv('GIT_CONFIG_COUNT', '1')
    monkeypatch.setenv('GIT_CONFIG_KEY_0', f'url.file://{mirror}/.insteadOf')
    monkeypatch.setenv('GIT_CONFIG_VALUE_0', 'https://github.com/')
    commit(mirror / 'someone' / 'cats', {'later.jpg': jpeg(70, 70, 'yellow')})
    main([str(photographs)])
    assert sizes(photographs / 'dogs') == [(200, 100), (256, 192)]
    assert sizes(photographs / 'cats') == [(80, 90)]
    assert {path.name for path in photographs.iterdir()} == {'dogs', 'cats', 'READY'}


def test_the_terms_are_printed_without_a_folder(mirror, capsys):
    main([])
    out = capsys.readouterr().out
    assert '| dogs | 2 | [someone/dogs](https://github.com/someone/dogs/tree/' in out
    assert '| cats | 1 |' in out
    assert out.rstrip().endswith('| no terms stated |')


def test_the_table_of_this_repository_can_be_read():
    with collect_photographs.TABLE.open(newline='') as file:
        rows = list(csv.DictReader(file))
    assert len({row['name'] for row in rows}) == len(rows)
    for row in rows:
        assert tuple(row) == COLUMNS
        assert re.fullmatch(r'[\w.-]+/[\w.-]+', row['repository'])
        assert re.fullmatch('[0-9a-f]{40}', row['commit'])
        assert re.compile(row['pattern'])
        assert int(row['count']) > 0
        assert row['kind']
        assert row['terms']
