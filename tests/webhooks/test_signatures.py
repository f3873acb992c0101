"""Signatures of webhooks: the published vectors, rotation of secrets, and refusals."""

from __future__ import annotations

import pytest

import lro
from lro.webhooks import SignedWebhook, WebhookError, generate_secret, sign, verify

VECTORS = [  # from the specification's libraries and the Svix guide
    (
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    ),
    (
        "whsec_plJ3nmyCDGBKInavdOK15jsl",
        "msg_loFOjxBNrRLzqYUf",
        1731705121,
        b'{"event_type":"ping","data":{"success":true}}',
        "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0=",
    ),
]
SECRET, ID, AT, BODY, SIGNATURE = VECTORS[0]


def headers(signature: str = SIGNATURE, at: object = AT, id: str = ID) -> dict[str, str]:
    """Return the three headers, with unusual upper and lower case in their names."""
    return {"Webhook-Id": id, "WEBHOOK-TIMESTAMP": str(at), "webhook-signature": signature}


@pytest.mark.parametrize(("secret", "id", "at", "body", "signature"), VECTORS)
def test_published_vectors_are_signed_and_verified(
    secret: str, id: str, at: int, body: bytes, signature: str
) -> None:
    assert sign(body, id=id, timestamp=at, secrets=[secret]) == signature
    found = verify(body, headers(signature, at, id), [secret], now=at)
    assert found == SignedWebhook(id, at)


def test_prefix_and_padding_of_a_secret_may_be_missing() -> None:
    bare = SECRET.removeprefix("whsec_")
    assert sign(BODY, id=ID, timestamp=AT, secrets=[bare]) == SIGNATURE
    padded = "whsec_" + "YWJjZA=="
    unpadded = "whsec_" + "YWJjZA"
    ours = [sign(BODY, id=ID, timestamp=AT, secrets=[one]) for one in (padded, unpadded)]
    assert ours[0] == ours[1]


def test_webhook_signed_by_two_secrets_is_accepted_by_holders_of_either() -> None:
    old, new = generate_secret(), generate_secret()
    both = sign(BODY, id=ID, timestamp=AT, secrets=[new, old])
    assert len(both.split(" ")) == 2
    for secrets in ([old], [new], [generate_secret(), old]):
        assert verify(BODY, headers(both), secrets, now=AT).id == ID


def test_unknown_signature_versions_are_ignored() -> None:
    assert verify(BODY, headers(f"v1a,xyz v2 , {SIGNATURE}"), [SECRET], now=AT)
    with pytest.raises(WebhookError, match="no signature in it is right"):
        verify(BODY, headers(SIGNATURE.replace("v1,", "v1a,")), [SECRET], now=AT)


def test_webhook_outside_of_the_tolerance_is_refused() -> None:
    for late in (-300, 0, 300):
        assert verify(BODY, headers(), [SECRET], now=AT + late).timestamp == AT
    for late in (-301, 301):
        with pytest.raises(WebhookError, match="at most 300 s are allowed"):
            verify(BODY, headers(), [SECRET], now=AT + late)
        assert verify(BODY, headers(), [SECRET], now=AT + late, tolerance=301)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "it has no header webhook-id"),
        ({**headers(), "WEBHOOK-TIMESTAMP": ""}, "it has no header webhook-timestamp"),
        (headers(""), "it has no header webhook-signature"),
        (headers(at="yesterday"), "must be Unix seconds"),
        (headers(at="-1614265330"), "must be Unix seconds"),
        (headers(at="9" * 5000), "must be Unix seconds"),
        (headers(at=AT + 1), "no signature in it is right"),
        (headers(id="msg_other"), "no signature in it is right"),
        (headers("v1,\udcff é"), "no signature in it is right"),
        (headers(SIGNATURE[:-1]), "no signature in it is right"),
        (headers(id="\udcff"), "no signature in it is right"),
        (headers("v1,x " * 100_000 + SIGNATURE), "no signature in it is right"),
    ],
)
def test_hostile_headers_are_refused_with_the_reason(given: dict[str, str], why: str) -> None:
    with pytest.raises(WebhookError, match=why) as refused:
        verify(BODY, given, [SECRET], now=AT)
    assert refused.value.reason == "INVALID_WEBHOOK"


def test_changed_body_is_refused() -> None:
    with pytest.raises(WebhookError, match="no signature in it is right"):
        verify(BODY + b" ", headers(), [SECRET], now=AT)


@pytest.mark.parametrize("secret", ["whsec_", "", "whsec_!!!", "whsec_é", "whsec_YWJjZ"])
def test_secret_that_is_not_base64_is_refused_without_showing_it(secret: str) -> None:
    """A secret that is not base64 is a configuration error, so it raises DeclarationError."""
    for use in (
        lambda: sign(BODY, id=ID, timestamp=AT, secrets=[secret]),
        lambda: verify(BODY, headers(), [SECRET, secret], now=AT),
    ):
        with pytest.raises(lro.DeclarationError, match="secret: must ") as refused:
            use()
        assert secret.removeprefix("whsec_") == "" or secret not in str(refused.value)
    with pytest.raises(lro.DeclarationError, match="secret: must be given"):
        verify(BODY, headers(), [], now=AT)


@pytest.mark.parametrize("space", ["\n", "\r\n", " "])
def test_white_space_around_secret_does_not_count(space: str) -> None:
    """White space around a secret is ignored: secret files often end with a newline."""
    assert verify(BODY, headers(), [f"{space}{SECRET}{space}"], now=AT)


def test_id_with_a_full_stop_cannot_be_signed() -> None:
    with pytest.raises(WebhookError, match="must not have a full stop"):
        sign(BODY, id="a.b", timestamp=AT, secrets=[SECRET])


def test_generated_secrets_have_32_random_bytes() -> None:
    import base64

    one, other = generate_secret(), generate_secret()
    assert one != other
    assert len(base64.b64decode(one.removeprefix("whsec_"))) == 32
