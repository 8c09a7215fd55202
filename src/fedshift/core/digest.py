"""Hashes of values and of the code that they run."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

#: folders of installed packages and of Python
_INSTALLED, _STDLIB = {"site-packages", "dist-packages"}, Path(sysconfig.get_path("stdlib"))
_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes)


class NoFile(Exception):
    """Code stands in no file, so a later run cannot see whether it was edited."""


def digest(*values: Any) -> str:
    """Hash values with the code that they run: models, estimators, functions, arrays, text.

    An estimator (`get_params`) is hashed by its parameters; any other object by all its attributes,
    down to the layers of a model and the variables of a closure. Each class, with its base classes,
    and each function adds the module file in which it stands, and the user's files which that
    module imports. Installed packages add their version instead. Functions also add their bytecode,
    since a file may have been edited after it was imported. What a function imports itself is not
    seen.

    Raises
    ------
    NoFile
        If code stands in no file (a notebook, ``python -c``), or if a value has no comparable
        content, such as an open file.

    Examples
    --------
    >>> digest(torch.ones(2)) == digest(torch.ones(2))
    True
    >>> digest([1, 2]) == digest([2, 1])
    False
    """
    walk = _Walk()
    for value in values:
        walk.add(value)
    return walk.out.hexdigest()


class _Walk:
    """A hash of everything that can be reached from the values that were added."""

    def __init__(self) -> None:
        self.out = hashlib.blake2b(digest_size=16)
        self.seen: dict[int, Any] = {}  # keeps objects, or ids would be used again
        self.own: dict[str, bool] = {}

    def add(self, value: Any) -> None:
        plain = type(value) in _PLAIN
        shared = isinstance(value, tuple | frozenset | CodeType)  # equal constants may be one
        seen = not (plain or shared) and id(value) in self.seen
        text = len(value) if isinstance(value, bytes) else value if plain else seen
        self.out.update(f"{type(value).__name__} {text!r};".encode())
        self.out.update(value if isinstance(value, bytes) else b"")
        if not (plain or seen):
            self.seen[id(value)] = value
            for part in self.parts(value):
                self.add(part)

    def parts(self, value: Any) -> Iterable[Any]:
        """What makes up a value: of an estimator its parameters, of others what pickle would take.

        Code of the user comes with its file (`module`).
        """
        if isinstance(value, tuple):
            return value
        if isinstance(value, set | frozenset):
            return sorted(map(digest, value))
        if isinstance(value, torch.Tensor):
            return str(value.dtype), value.detach().cpu().double().numpy()
        if isinstance(value, CodeType):
            return value.co_code, value.co_names, value.co_consts
        if isinstance(value, FunctionType):
            code = value.__code__ if self.module(value.__globals__.get("__name__")) else None
            # a cell may still be empty
            cells = [c.cell_contents for c in value.__closure__ or () if c != CellType()]
            inner = value.__defaults__, value.__kwdefaults__, cells, vars(value)
            return value.__qualname__, code, *inner
        if isinstance(value, type):
            return (part for kind in value.__mro__ for part in self.members(kind))
        if isinstance(value, ModuleType):
            return value.__name__, self.module(value.__name__)
        if hasattr(value, "get_params"):
            return type(value), value.get_params(deep=False)
        if isinstance(value, torch.nn.Module):  # the keys of hooks count all hooks of the process
            hooks = {n: v for n, v in vars(value).items() if "_hooks" in n and isinstance(v, dict)}
            return type(value), vars(value) | {n: [*v.values()] for n, v in hooks.items()}
        try:
            taken = value.__reduce_ex__(4)
        except Exception as error:
            raise NoFile(f"a {type(value).__name__} has no comparable content") from error
        items = () if isinstance(taken, str) else map(tuple, filter(None, taken[3:5]))
        return (taken,) if isinstance(taken, str) else (*taken[:3], *items)

    def members(self, kind: type) -> Iterator[Any]:
        """Name, functions and plain values of a class, without its base classes."""
        members, user = vars(kind), self.module(kind.__module__)
        if kind.__module__ == "builtins" and FunctionType in map(type, members.values()):
            raise NoFile(f"class {kind.__qualname__} stands in no file")  # made by exec
        yield kind.__qualname__
        for name, m in members.items() if user else ():
            for f in (m, *(getattr(m, n, None) for n in ("__func__", "fget", "func"))):
                module = getattr(f, "__globals__", {}).get("__name__")
                if type(f) in _PLAIN or module in sys.modules:  # else generated, by namedtuple
                    yield name, f

    def module(self, name: Any) -> bool:
        """Add the file of a user's module, or a package's version; whether it is the user's."""
        if name in self.own:
            return self.own[name]
        root = str(name).partition(".")[0]
        package = sys.modules.get(root)
        module = sys.modules.get(name) or package
        path = Path(getattr(module, "__file__", None) or getattr(package, "__file__", None) or "")
        known = {__name__.partition(".")[0]} if path.name else sys.stdlib_module_names
        library = root in known or _STDLIB in path.parents or _INSTALLED & {*path.parts}
        if not (library or path.is_file()):
            raise NoFile(f"code of {name} stands in no file")
        self.own[name] = not library
        self.add((root, getattr(package, "__version__", "")) if library else path.read_bytes())
        for value in () if library else list(vars(module).values()):
            inner = isinstance(value, ModuleType)
            owner = value if isinstance(value, FunctionType | type) else type(value)
            other = value.__name__ if inner else owner.__module__
            # submodules of a package depend on what else was imported
            if other in sys.modules and not (inner and other.startswith(f"{name}.")):
                with suppress(NoFile):
                    self.module(other)
        return not library
