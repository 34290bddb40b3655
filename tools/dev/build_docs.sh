#!/usr/bin/env bash
# Builds the website of docs/ into docs/_build/html; a warning, a broken link inside the site or a page that loads
# anything from the network is an error.
#   bash tools/dev/build_docs.sh [arguments of sphinx-build]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if ! .venv/bin/python -c 'import sphinx' 2>/dev/null; then
    echo 'error: .venv: expected an environment with Sphinx; create it with: bash tools/install.sh --dev' >&2
    exit 2
fi
.venv/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html "$@"
if grep -rEo '<(script|link|img)[^>]* (src|href)="(https?:)?//[^"]*"' docs/_build/html --include='*.html' >&2; then
    echo 'error: docs/_build/html: expected pages that load nothing from the network, got the above' >&2
    exit 1
fi
echo 'docs/_build/html/index.html'
