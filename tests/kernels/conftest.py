"""The fixtures of the kernels' tests."""

from tests.ops.conftest import (  # noqa: F401
    _quick_interpreter,
    _split_short_sequences,
    pytest_runtest_setup,
)
