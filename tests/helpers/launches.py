"""Count what an eager run on a GPU would launch."""

from collections import UserList

from torch.utils._python_dispatch import TorchDispatchMode

VIEWS = {
    '_conj', '_unsafe_view', 'alias', 'as_strided', 'detach', 'expand', 'permute', 'select', 'slice', 'split',
    'split_with_sizes', 'squeeze', 't', 'transpose', 'unbind', 'unsqueeze', 'view', 'view_as_complex', 'view_as_real',
    'empty', 'empty_like', 'new_empty', 'empty_strided', 'new_empty_strided',
}  # fmt: skip
"""Operations that launch nothing."""


class Launches(UserList):
    """Inside a `with` block, a list of the names of PyTorch's operations that are no views."""

    def __enter__(self):
        launches = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                name = function._schema.name.removeprefix('aten::')
                if name not in VIEWS:
                    launches.append(name)
                return function(*args, **(kwargs or {}))

        self.mode = Mode()
        self.mode.__enter__()
        return self

    def __exit__(self, *error):
        self.mode.__exit__(*error)
