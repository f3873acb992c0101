"""Text from servers, made safe for a terminal."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("rich")

from lro.wire import plain
from lro_client.cli._terminal import one_line, plain_json, safe_in_shells

UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
anything = st.text(st.characters())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "a b"),
        ("5 ≥ 3\u3000日本 é 🙂", "5 ≥ 3\u3000日本 é 🙂"),
        ("\x1b[2J\x9b\n\t", r"\x1b[2J\x9b\n\t"),
        ("\u061c\u200b\u200d\u202e\u2028", r"\u061c\u200b\u200d\u202e\u2028"),
        ("\U000e0041\ud800\u3164\ufe0f\u2800", r"\U000e0041\ud800\u3164\ufe0f\u2800"),
    ],
)
def test_invisible_characters_are_escaped(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(anything)
def test_escaped_text_and_json_have_no_invisible_character(text: str) -> None:
    """An escaped text has no invisible characters. Escaped JSON keeps its value."""
    for shown in (plain(text), one_line(text)):
        assert UNSEEN.isdisjoint(map(unicodedata.category, shown))
    as_json = plain_json(json.dumps([text], ensure_ascii=False))
    assert UNSEEN.isdisjoint(map(unicodedata.category, as_json))
    assert json.loads(as_json) == json.loads(json.dumps([text]))


def test_white_space_becomes_single_spaces() -> None:
    assert one_line(" a\r\n\tb\u2028\u00a0c\x1b ") == r"a b c\x1b"


def test_word_with_a_shell_character_is_not_safe() -> None:
    """A word is unsafe if it has a shell character, begins with a hyphen or is empty."""
    for word in ("a", "operations/a-b_c.d", "projects/1/operations/a%2F+@x"):
        assert safe_in_shells(word)
    for sign in [*"~=:;|&$`'\"\\<>(){}[]*?!#^, \n\x1bé\u200b"]:
        assert not safe_in_shells(f"a{sign}b")
        assert not safe_in_shells(f"a{sign}")
    assert not safe_in_shells("-a")
    assert not safe_in_shells("")
