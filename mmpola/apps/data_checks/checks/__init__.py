"""All checks, in the order in which they are asked: each file is a part of one table."""

from mmpola.apps.data_checks.checks import (  # noqa: I001  the order of the table
    config,
    files,
    objects,
    loaded,
    splits,
    copies,
    evaluators,
)

__all__ = ['config', 'copies', 'evaluators', 'files', 'loaded', 'objects', 'splits']
