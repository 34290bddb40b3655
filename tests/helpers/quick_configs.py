"""MMEngine's configs without two waits, which are half of the time of a small training."""

from functools import wraps

from mmengine.config import config as reading


def hasten_configs(patch):
    """Take base configs of other packages from their folder; write configs without formatting them.

    No value of a config changes. MMEngine first looks for a base config in every metafile of its
    package, and formats a config for each of the about ten places that it writes it to.

    Args:
        patch: pytest's MonkeyPatch.
    """
    search = reading._get_external_cfg_path

    @wraps(search)
    def find(package, path):
        if path.startswith('_base_/'):
            raise ValueError  # in no metafile
        return search(package, path)

    patch.setattr(reading, '_get_external_cfg_path', find)
    # The fork has no FormatCode.
    patch.setattr(reading, 'FormatCode', lambda text, **_: (text, True), raising=False)
