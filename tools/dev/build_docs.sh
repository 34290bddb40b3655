#!/usr/bin/env bash
# Builds the website of docs/ into docs/_build/html; a warning or a broken link inside the site is an error.
#   bash tools/dev/build_docs.sh [arguments of sphinx-build]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html "$@"
echo 'docs/_build/html/index.html'
