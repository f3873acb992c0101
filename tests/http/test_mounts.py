"""Raw paths: below mount points, and compared with decoded paths."""

from __future__ import annotations

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lro._http.requests import raw_form, strip_mount, wire_text

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
SEGMENTS = st.lists(TEXT.filter(lambda text: "/" not in text), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("path", "mount", "below"),
    [
        ("/api", "/api", "/"),
        ("/api/", "/api", "/"),
        ("/api//x", "/api", "//x"),
        ("/apis/x", "/api", None),
        ("/%61pi/v1/x", "/api", "/v1/x"),
        ("/%C3%BC/v1/x", "/ü", "/v1/x"),
        ("/a%2Fb/v1", "/a/b", "/v1"),
        ("", "/api", None),
        ("", "", ""),
    ],
)
def test_mount_is_removed_from_the_raw_path_at_a_segment_end(
    path: str, mount: str, below: str | None
) -> None:
    """A mount point matches only whole segments of a path."""
    assert strip_mount(path, mount) == below


@given(SEGMENTS, SEGMENTS)
def test_strip_mount_returns_the_rest_of_a_joined_path(mount: list[str], rest: list[str]) -> None:
    """The path below the mount point stays unchanged, with or without escapes in either part."""
    below = "".join("/" + quote(segment, safe="") for segment in rest)
    whole = "".join("/" + quote(segment, safe="") for segment in mount) + below
    assert strip_mount(whole, "/" + "/".join(mount)) == below


@pytest.mark.parametrize(
    ("raw", "decoded", "wanted"),
    [
        ("/v1/a%2Fb", "/v1/a/b", "/v1/a%2Fb"),
        ("/old/a%2Fb", "/v1/a/b", "/v1/a/b"),
        ("", "/v1/ü:x%", "/v1/%C3%BC:x%25"),
        ("/v1/%ff", "/v1/\udcff", "/v1/%ff"),
        ("/v1/%fe", "/v1/\ufffd", "/v1/%fe"),
        ("", "/v1/\udcff", "/v1/%ED%B3%BF"),
        ("", "", ""),
    ],
)
def test_raw_path_is_ignored_unless_it_decodes_to_the_path(
    raw: str, decoded: str, wanted: str
) -> None:
    """If the decoded path was rewritten, the raw path is ignored."""
    assert raw_form(raw, decoded) == wanted


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters()))
def test_routed_path_equals_the_decoded_path(decoded: str, raw: str) -> None:
    """Whatever raw path the server passes, the routed path equals the decoded one."""
    assert unquote(raw_form(raw, decoded)) == decoded


@given(st.binary())
def test_bytes_of_a_path_survive_decoding(data: bytes) -> None:
    """The bytes of a path stay unchanged, whether or not they are UTF-8."""
    assert wire_text(data).encode("utf-8", "surrogateescape") == data


@pytest.mark.parametrize(
    ("raw", "decoded"), [("/%41" * 5000, "/A" * 5000), ("", "/v1/" + "é" * 16381)]
)
def test_path_that_is_too_long_is_not_decoded(raw: str, decoded: str) -> None:
    """A path that is too long is not decoded for a comparison, because it matches no route."""
    assert raw_form(raw, decoded) == (raw or decoded)
    assert strip_mount(raw_form(raw, decoded), "/A") is None
