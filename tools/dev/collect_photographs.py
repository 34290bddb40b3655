"""Collect the photographs that the small networks are pretrained on into one folder.

    python tools/dev/collect_photographs.py                 # print the sources and their terms
    python tools/dev/collect_photographs.py photographs     # collect them
    python tools/dev/collect_photographs.py photographs --only imagenette caltech101
    python tools/dev/collect_photographs.py photographs --table tools/dev/everyday_photographs.csv \
        --longer-side 480                                   # those that a detector learns from

photographs.csv beside this script, or another table, names the sources: public Git repositories,
each at one commit, about 7 GB to download. The photographs whose path matches a source's pattern
go to FOLDER/SOURCE/HASH.jpg: upright, RGB, the shorter side at most 192 pixels (for a detector,
--longer-side limits the longer side instead). Left out are pictures with a shorter side below 64,
files of 4 MiB and more, files that an earlier source has too, and what photographs_left_out.txt
names: pictures of data sets that the networks are tested on.

A source that cannot be reached costs one line. Run the command again to continue: sources that are
complete are skipped. FOLDER/READY counts the photographs of the complete ones.
"""

from __future__ import annotations

from mmpola.command import prepare_script

prepare_script()  # before torch is imported

import argparse
import csv
import io
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from PIL import Image, ImageOps
from tqdm import tqdm

from mmpola.messages import run_main

TABLE = Path(__file__).with_name('photographs.csv')
LEFT_OUT = Path(__file__).with_name('photographs_left_out.txt')
SHORTER_SIDE = 192
SMALLEST_SIDE = 64
LARGEST_FILE = 4 * 2**20

Source = dict[str, str]
"""A row of the table: name, kind, repository, commit, pattern, count, terms."""


def git(folder: Path, *arguments: str) -> str:
    """Return what a command prints in a Git directory; CalledProcessError if it fails."""
    command = ['git', '-C', str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def bring(source: Source, folder: Path, mirror: Path | None) -> Path:
    """Return the Git directory of a source: its copy in the mirror, or one commit fetched."""
    if mirror is not None:
        return mirror / source['repository'].replace('/', '+') / 'repo'
    folder.mkdir()
    git(folder, 'init', '--quiet', '--bare')
    address = f'https://github.com/{source["repository"]}'
    git(folder, 'fetch', '--depth=1', address, source['commit'])
    return folder


def hashes(source: Source, folder: Path) -> list[str]:
    """Return the Git hashes of a source's photographs in the order of their paths, each once."""
    found = {}
    for entry in git(folder, 'ls-tree', '-r', '-z', source['commit']).split('\0')[:-1]:
        properties, path = entry.split('\t', 1)
        if re.search(source['pattern'], path):
            found[properties.split()[2]] = path
    return list(found)


def contents(folder: Path, names: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the hashes in the file of names and what the Git directory has for them."""
    command = ['git', '-C', str(folder), 'cat-file', '--batch']
    with names.open() as file, subprocess.Popen(command, stdin=file, stdout=-1) as process:
        assert process.stdout is not None
        while header := process.stdout.readline().split():
            if header[1] != b'missing':  # copies of repositories may lack large files
                yield header[0].decode(), process.stdout.read(int(header[2]))
                process.stdout.read(1)  # the end of the line


def shrink(data: bytes, longer_side: int | None) -> Image.Image | None:
    """Return a photograph at the size that is kept, or None for one that is left out.

    The longer side is then at most `longer_side` pixels; without it, the shorter one SHORTER_SIDE.
    """
    try:
        picture: Image.Image = Image.open(io.BytesIO(data))
        if min(picture.size) < SMALLEST_SIDE or len(data) >= LARGEST_FILE:
            return None
        twice = 2 * (longer_side or SHORTER_SIDE)
        picture.draft('RGB', (twice, twice))  # decodes a JPEG faster
        picture = ImageOps.exif_transpose(picture).convert('RGB')
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # none, or damaged
        return None
    factor = SHORTER_SIDE / min(picture.size)
    if longer_side is not None:
        factor = longer_side / max(picture.size)
    if factor < 1:
        size = (round(picture.width * factor), round(picture.height * factor))
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    return picture


def collect(source: Source, git_folder: Path, folder: Path, longer_side: int | None) -> None:
    """Write a source's photographs; their folder gets its name when it is complete."""
    known = set(LEFT_OUT.read_text().split()) | {path.stem for path in folder.glob('*/*.jpg')}
    names = [name for name in hashes(source, git_folder) if name not in known]
    part = folder / f'{source["name"]}.part'
    part.mkdir()
    listed = part / 'names'
    listed.write_text('\n'.join(names))
    for name, data in tqdm(contents(git_folder, listed), source['name'], len(names)):
        picture = shrink(data, longer_side)
        if picture is not None:
            picture.save(part / f'{name}.jpg', quality=88)
    listed.unlink()
    part.rename(folder / source['name'])


def write_counts(names: Iterable[str], folder: Path) -> dict[str, int]:
    """Count the photographs of the sources that are complete, and write that to READY."""
    complete = [name for name in names if (folder / name).is_dir()]
    counts = {name: len(list((folder / name).glob('*.jpg'))) for name in complete}
    new = folder / 'READY.new'
    new.write_text(''.join(f'{name} {number}\n' for name, number in counts.items()))
    new.rename(folder / 'READY')
    return counts


def show_terms(sources: list[Source]) -> None:
    """Print the sources as a table in Markdown."""
    print('| photographs of | count | repository | its terms |\n| --- | --- | --- | --- |')
    for row in sources:
        link = f'[{row["repository"]}](https://github.com/{row["repository"]}/tree/{row["commit"]})'
        print(f'| {row["kind"]} | {int(row["count"]):,} | {link} | {row["terms"]} |')


def main(arguments: list[str] | None = None) -> None:
    """Collect the sources of the table, or print it if no folder is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path, nargs='?', help='where the photographs go')
    parser.add_argument('--table', type=Path, default=TABLE, help='the sources')
    parser.add_argument('--only', nargs='+', metavar='SOURCE')
    parser.add_argument('--longer-side', type=int, help='pixels at most, instead of the shorter')
    parser.add_argument('--mirror', type=Path, help='folder of repositories, as OWNER+NAME/repo')
    options = parser.parse_args(arguments)
    with options.table.open(newline='') as file:
        sources = {row['name']: row for row in csv.DictReader(file)}
    for name in options.only or ():
        if name not in sources:
            parser.error(f'--only: expected some of {", ".join(sources)}, got {name}')
    if options.folder is None:
        show_terms(list(sources.values()))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    for interrupted in options.folder.glob('*.part'):
        shutil.rmtree(interrupted)
    for name, source in sources.items():
        if name not in (options.only or sources) or (options.folder / name).is_dir():
            continue
        fetched = options.folder / 'git.part'
        try:
            git_folder = bring(source, fetched, options.mirror)
            collect(source, git_folder, options.folder, options.longer_side)
        except subprocess.CalledProcessError as error:
            print(f'{name}: {source["repository"]} is left out: {error.stderr.strip()}')
        shutil.rmtree(fetched, ignore_errors=True)
        write_counts(sources, options.folder)
    for name, number in write_counts(sources, options.folder).items():
        if number != int(sources[name]['count']):
            print(f'{name}: expected {sources[name]["count"]} photographs, got {number}')


if __name__ == '__main__':
    run_main(main)
