"""Whether a text that is not JSON is the beginning of one that was cut on its way."""

from __future__ import annotations

import codecs
import json
import re
from typing import Final, NoReturn

_UNFINISHED: Final = re.compile(
    r"""
    | -                                         # of a number
    | (?<=[0-9]) (?: \. | \.?[0-9]*[eE][+-]? )
    | t (?:r u?)? | f (?:a (?:l s?)?)? | n (?:u l?)?
    | " (?: [^"\\]++ | \\. )*+ \\?              # of a text
    | (?<=\\) u [0-9a-fA-F]{0,4}                # of an escape in a text
    """,
    re.VERBOSE | re.DOTALL,
)
"""What a text may end with instead of the next token. Nothing is unfinished too."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def is_truncated(content: bytes) -> bool:
    """Whether these bytes end too early, so that more of them might have been one JSON text.

    Bytes that no continuation makes JSON in UTF-8 are not truncated: they can never be read.
    """
    try:
        # An incremental decoder waits for the rest of a character that is cut.
        text = codecs.getincrementaldecoder("utf-8")().decode(content)
    except UnicodeDecodeError:
        return False
    try:
        json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as exc:
        return _UNFINISHED.fullmatch(text, exc.pos) is not None
    except (ValueError, RecursionError):  # a number of too many digits, or too deep
        return False
    return False
