"""Owns what a field of the service's request is called in an API that has its own names for some."""

import re
from collections.abc import Mapping
from typing import Final

_GROUP: Final = re.compile(r"^(?:generation\.|sampling\.|stopping\.|chat\.)+")
_INDEX: Final = re.compile(r"\[(\d+)\]")


def renamed(field: str, names: Mapping[str, str], *, index: str) -> str:
    """Return a violation's field without its groups, by the API's name and index form.

    `names` holds those that differ, a whole path with `[]` for its indexes or its first part alone;
    `index` is like `.[{}]` or `.{}`.
    """
    path = _GROUP.sub("", field)
    whole = names.get(_INDEX.sub("[]", path))
    if whole is not None:
        numbers = _INDEX.findall(path)
        return whole.replace("[]", index).format(*numbers)
    leaf = re.split(r"[.\[]", path, maxsplit=1)[0]
    rest = _INDEX.sub(lambda match: index.format(match[1]), path[len(leaf) :])
    return names.get(leaf, leaf) + rest
