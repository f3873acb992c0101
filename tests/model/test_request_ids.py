"""Request ids: which texts are valid, and which of them are equal (spec §9.2(1))."""

from __future__ import annotations

import unicodedata
import uuid

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lro.errors import InvalidRequestId
from lro.wire import MAX_REQUEST_ID, normal_request_id

ID = "6f1c3b62-3c5e-4a53-9c1f-2b7f9a4d1e01"
NIL = "00000000-0000-0000-0000-000000000000"
UUIDS = "must be a UUID of 36 characters here, got "
LENGTH = "must be a text of 1 to 128 characters, got "
CHARACTERS = "must not have control characters, line separators or lone surrogates, got "
ENDS = "must not begin or end with white space, got "
WRONG = {
    "": f"{LENGTH}0",
    "x" * 129: f"{LENGTH}129",
    "a\0": f"{CHARACTERS}U+0000 at character 1",
    "a\nb": f"{CHARACTERS}U+000A at character 1",
    "\x7f": f"{CHARACTERS}U+007F at character 0",
    "a\x85": f"{CHARACTERS}U+0085 at character 1",
    "a\u2028b": f"{CHARACTERS}U+2028 at character 1",
    "ab\udfff": f"{CHARACTERS}U+DFFF at character 2",
    " order": f"{ENDS}' order'",
    "order\u3000": f"{ENDS}'order\\u3000'",
    NIL: "must not be a UUID of zeros only",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_invalid_request_id_is_refused_with_the_facts(text: str) -> None:
    with pytest.raises(InvalidRequestId) as caught:
        normal_request_id(text)
    assert (caught.value.field, caught.value.description) == ("request_id", WRONG[text])


@pytest.mark.parametrize("text", ["order-17", "a b", "x" * 128, "ключ/5", "\U0001f600" * 128])
def test_text_of_the_caller_is_a_request_id_as_it_is(text: str) -> None:
    assert normal_request_id(text) == text


def test_uuid_is_compared_without_regard_to_letter_case_and_other_texts_with_it() -> None:
    assert normal_request_id(ID.upper()) == normal_request_id(ID, only_uuid=True) == ID
    for text in (
        "Order-17",
        ID.upper() + "X",
        ID.upper().replace("6", "\N{ARABIC-INDIC DIGIT SIX}"),
    ):
        assert normal_request_id(text) == text


@pytest.mark.parametrize("text", ["order-17", "", ID + "0", ID.replace("-", ""), f"{{{ID}}}"])
def test_text_where_only_a_uuid_is_allowed_is_refused_with_the_cure(text: str) -> None:
    with pytest.raises(InvalidRequestId, match=UUIDS) as caught:
        normal_request_id(text, only_uuid=True)
    assert caught.value.description.endswith(
        f"make one of your own key: uuid.uuid5(uuid.NAMESPACE_URL, {text!r})"
    )
    assert normal_request_id(str(uuid.uuid5(uuid.NAMESPACE_URL, text)), only_uuid=True)


@given(st.text(min_size=1, max_size=MAX_REQUEST_ID + 1))
def test_every_text_is_either_returned_as_it_is_or_refused(text: str) -> None:
    assume(text.lower() != ID)
    fits = len(text) <= MAX_REQUEST_ID and text == text.strip()
    fits = fits and not {"Cc", "Cs", "Zl", "Zp"} & {unicodedata.category(one) for one in text}
    try:
        assert normal_request_id(text) == text
    except InvalidRequestId:
        assert not fits
    else:
        assert fits
