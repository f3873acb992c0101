"""Page tokens: encrypted cursors, each valid for one list and for three days."""

from __future__ import annotations

import base64
import contextlib
import re
import string
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro._model.page_tokens import (
    KEY_BYTES,
    TOKEN_LIFE,
    decode_page_token,
    effective_page_size,
    encode_page_token,
)
from lro.adapters import Cursor
from lro.errors import InvalidPageSize, InvalidPageToken, PageTokenExpired

KEY = bytes(range(KEY_BYTES))
NOW = datetime(2030, 1, 1, tzinfo=UTC)
PLACE = Cursor(datetime(2029, 12, 31, 1, 2, 3, 456789, tzinfo=UTC), "projects/p/operations/ü")


def sealed(place=PLACE, **changes):
    return encode_page_token(
        place, **{"key": KEY, "parent": "projects/p", "filter_text": "f", "now": NOW} | changes
    )


def unsealed(token, **changes):
    return decode_page_token(
        token, **{"key": KEY, "parent": "projects/p", "filter_text": "f", "now": NOW} | changes
    )


@given(
    st.datetimes(timezones=st.just(UTC)),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    st.text(max_size=9).filter(lambda text: text.isprintable()),
    st.datetimes(datetime(1, 1, 5), datetime(9999, 12, 1), timezones=st.just(UTC)),
)
def test_cursor_survives_a_page_token(moment, name, text, now):
    """A cursor read back from a page token has the same microseconds and characters."""
    place = Cursor(moment, name)
    token = sealed(place, filter_text=text, now=now)
    assert unsealed(token, filter_text=text, now=now) == place
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)


def test_page_token_reveals_neither_name_nor_time():
    """Neither a name nor a time can be read from a page token (spec §3.4(4))."""
    raw = base64.urlsafe_b64decode(sealed() + "==")
    assert b"operations" not in raw
    assert sealed() == sealed()
    assert sealed()[:8] != sealed(now=NOW + timedelta(seconds=1))[:8]


def altered(token):
    """Yield the token with one bit changed, for each bit, and then the token in other spellings."""
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    for place in range(len(raw)):
        for bit in range(8):
            other = bytearray(raw)
            other[place] ^= 1 << bit
            yield base64.urlsafe_b64encode(bytes(other)).rstrip(b"=").decode()
    for place in range(len(token)):
        yield token[:place] + token[place + 1 :]
        yield token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
    yield from (token + "=", token + "A", token + " ", " " + token, token + "é", token[::-1])
    yield from (token.replace("-", "+").replace("_", "/") + "=", token * 2, "=", "A", "AAAA")


def test_altered_page_token_is_refused():
    """Every changed bit in a page token, and every other spelling of the token, is detected."""
    token = sealed(Cursor(PLACE.create_time, "projects/p/operations/aa"))
    count = 0
    for other in altered(token):
        if other != token:
            count += 1
            with pytest.raises(InvalidPageToken):
                unsealed(other)
    assert count > 600


def test_another_spelling_of_the_same_bytes_is_refused():
    """Only one last character of a token is valid, because its unused bits must be zero."""
    for length in (1, 2, 3):
        token, found = sealed(Cursor(PLACE.create_time, "a" * length)), []
        for last in f"{string.ascii_letters}{string.digits}-_":
            with contextlib.suppress(InvalidPageToken):
                found.append(unsealed(token[:-1] + last))
        assert len(found) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"parent": "projects/q"},
        {"parent": ""},
        {"filter_text": ""},
        {"filter_text": "f "},
        {"key": bytes(KEY_BYTES)},
        {"parent": "projects/pf", "filter_text": ""},
    ],
)
def test_page_token_of_another_parent_filter_or_service_is_refused(changes):
    """A page token is bound to its parent, filter and service (spec §3.4(5))."""
    with pytest.raises(InvalidPageToken, match="is not a token of this list"):
        unsealed(sealed(), **changes)


def test_page_token_expires_after_three_days():
    """A page token is valid for exactly three days after it was made (spec §3.4(6))."""
    assert unsealed(sealed(), now=NOW + TOKEN_LIFE) == PLACE
    with pytest.raises(PageTokenExpired, match="older than 3 days"):
        unsealed(sealed(), now=NOW + TOKEN_LIFE + timedelta(microseconds=1))


def test_token_of_a_later_version_is_refused(monkeypatch):
    """A page token of a later version of this library is refused."""
    with monkeypatch.context() as patch:
        patch.setattr("lro._model.page_tokens._VERSION", 2)
        token = sealed()
    with pytest.raises(InvalidPageToken):
        unsealed(token)


def test_page_size_has_a_default_and_a_maximum():
    """Page sizes have the default 50 and the maximum 1000. A negative size is refused (§3.4(1))."""
    assert [effective_page_size(n) for n in (0, 1, 50, 1000, 1001, 2**31 - 1)] == [
        50, 1, 50, 1000, 1000, 1000,
    ]  # fmt: skip
    with pytest.raises(InvalidPageSize, match="got -1"):
        effective_page_size(-1)
