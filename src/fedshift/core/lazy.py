"""Load the names of a package on first use, so that its import stays fast."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing's, which takes longer to import than all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def attach(
    package: str, names: Mapping[str, tuple[str, ...]], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Parameters
    ----------
    package : str
        The ``__name__`` of the package.
    names : mapping of module to names
        Modules relative to the package, with the names that each defines.
    modules : tuple of str
        Modules relative to the package that become attributes under the last part of their name.
    """
    home = {name: f"{package}.{module}" for module, listed in names.items() for name in listed}
    whole = {module.rpartition(".")[2]: f"{package}.{module}" for module in modules}

    def load(name: str) -> Any:
        if name in whole:
            return import_module(whole[name])
        if name in home:
            return getattr(import_module(home[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    public = sorted({*home, *whole})
    return load, lambda: public, public
