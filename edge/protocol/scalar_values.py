"""Owns turning any Python string into one that UTF-8 can carry.

Python strings may hold surrogate code points; UTF-8 may not. Web IDL ("USVString") names the
conversion used here, with one difference: a high and a low surrogate side by side are replaced
one by one, not joined, so that replacing text piece by piece gives the same as replacing it whole.
"""

import re
from typing import Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Return `text`, as long as it was, with each surrogate code point replaced by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)
