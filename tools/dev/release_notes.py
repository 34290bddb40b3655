"""Print what CHANGELOG.md says about a version, after checks that all files name this version.

    python tools/dev/release_notes.py VERSION            before a tag is published
    python tools/dev/release_notes.py VERSION --draft    the changelog may say 'not yet released'

Needs nothing but Python, so that the release workflow installs nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION_LINES = {
    'mmpola/__init__.py': r"^__version__ = '(.+)'$",
    'CITATION.cff': r'^version: (.+)$',
}
"""The files that name the version, and the line with it."""


def release_notes(root: Path, version: str, draft: bool = False) -> str:
    """Return the part of CHANGELOG.md on a version.

    Args:
        root: the repository.
        version: without a leading 'v', as '0.1.0'.
        draft: whether the heading may have '(not yet released)' instead of a date.

    Raises:
        SystemExit: a file names another version, or the changelog has no dated part on it.
    """
    for name, pattern in VERSION_LINES.items():
        found = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        stated = found.group(1) if found else None
        if stated != version:
            sys.exit(f'error: {name}: expected version {version}, got {stated}')

    _, *sections = re.split(r'^## ', (root / 'CHANGELOG.md').read_text(), flags=re.MULTILINE)
    for section in sections:
        heading, _, notes = section.partition('\n')
        if heading.split()[0] != version:
            continue
        dated = re.fullmatch(r'\S+ \(\d{4}-\d{2}-\d{2}\)', heading)
        if not dated and not draft:
            sys.exit(f"error: CHANGELOG.md: expected '## {version} (YYYY-MM-DD)', got '{heading}'")
        return notes.strip()
    sys.exit(f"error: CHANGELOG.md: expected a heading '## {version} (YYYY-MM-DD)', got none")


def main() -> None:
    parser = argparse.ArgumentParser(description='Print the release notes of a version')
    parser.add_argument('version')
    parser.add_argument('--draft', action='store_true', help="'not yet released' is allowed")
    args = parser.parse_args()
    print(release_notes(ROOT, args.version, args.draft))


if __name__ == '__main__':
    main()
