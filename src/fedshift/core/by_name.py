"""Results that are mappings of names to their entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from fedshift.core.params import nearest
from fedshift.errors import UnknownName

V = TypeVar("V")


class ByName(Mapping[str, V]):
    """A mapping of names to the entries of a field, in their order.

    A subclass sets two class attributes.

    Attributes
    ----------
    _entries : str
        The field, a sequence of entries.
    _key : str
        The attribute of an entry that holds its name, also for the error.
    """

    _entries: ClassVar[str]
    _key: ClassVar[str]

    @property
    def _by_name(self) -> Mapping[str, Any]:
        return {getattr(entry, self._key): entry for entry in getattr(self, self._entries)}

    def __getitem__(self, name: str) -> V:
        """Return the entry of a name; `UnknownName`, a `KeyError`, lists the names."""
        if name not in self._by_name:
            raise UnknownName(f"the {self._key} must be {nearest(name, self._by_name)}")
        entry: V = self._by_name[name]
        return entry

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._by_name)

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(getattr(self, self._entries))
