"""Filters, ids, signatures and secrets. B062, B066."""

from __future__ import annotations

import base64
import secrets
from datetime import UTC, datetime

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st
from replicate.webhook import InvalidSignatureError, Webhooks, WebhookSigningSecret

from service.domain.webhook import (
    BadSecret,
    Webhook,
    WebhookEvent,
    delivery_id,
    owner_secrets,
    read_secret_key,
    read_secret_keys,
    secret_key,
    sign,
    signature_header,
)

SECRETS = st.binary(min_size=24, max_size=64)
START, COMPLETED = WebhookEvent.START, WebhookEvent.COMPLETED


def headers(message_id: str, timestamp_s: int, signature: str) -> dict[str, str]:
    return {"webhook-id": message_id, "webhook-timestamp": str(timestamp_s), "webhook-signature": signature}


def test_b062_no_filter_wants_all_and_a_filter_what_it_names() -> None:
    assert all(Webhook("https://h").wants(event) for event in WebhookEvent)
    only = Webhook("https://h", (COMPLETED,))
    assert [only.wants(event) for event in WebhookEvent] == [False, False, False, True]


def test_an_id_names_prediction_event_and_place() -> None:
    assert delivery_id("abc", COMPLETED, 12) == "msg_abc_completed_12"
    assert "." not in delivery_id("a-b", START, 2)  # a dot would make the signed text ambiguous


def test_the_signature_is_that_of_the_specification() -> None:
    # The example of Standard Webhooks' own libraries.
    secret = read_secret_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_an_owner_has_secrets_of_its_own() -> None:
    secrets_ = (b"n" * 32, b"o" * 32)
    made = {owner: owner_secrets(secrets_, owner) for owner in ("", "ann", "bob", "anna")}
    assert made[""] == secrets_
    every = [secret for of_one in made.values() for secret in of_one]
    assert len(set(every)) == len(every) == 8, (
        "one for each of the service's, so that rotation works the same"
    )
    assert all(read_secret_key(secret_key(secret)) == secret for secret in every)


@given(SECRETS, st.text(min_size=1, max_size=200), st.characters(codec="utf-8"))
def test_b065_official_validators_take_it_and_refuse_any_change(secret: bytes, body: str, more: str) -> None:
    now_s = int(datetime.now(UTC).timestamp())
    told = headers("msg_a_start_1", now_s, signature_header([secret], "msg_a_start_1", now_s, body.encode()))
    assert verified(secret, body, told)
    assert not verified(secret, body + more, told)
    assert not verified(secret, body, told | {"webhook-id": "msg_a_start_2"})
    assert not verified(secret, body, told | {"webhook-timestamp": str(now_s - 1)})


def verified(secret: bytes, body: str, told: dict[str, str]) -> bool:
    """Return what Replicate's validator and Standard Webhooks' say, which must be the same."""
    key = WebhookSigningSecret(key=secret_key(secret))
    try:
        Webhooks.validate(headers=told, body=body, secret=key, tolerance=300)
        ours = True
    except InvalidSignatureError:
        ours = False
    try:
        # It reads the body as JSON once it has been verified.
        standardwebhooks.Webhook(key.key).verify(body, told)
        theirs = True
    except standardwebhooks.WebhookVerificationError:
        theirs = False
    except ValueError:
        theirs = True
    assert ours == theirs
    return ours


@given(st.lists(SECRETS, min_size=2, max_size=4, unique=True))
def test_a_rotation_is_taken_by_holders_of_either_secret(keys: list[bytes]) -> None:
    now_s = int(datetime.now(UTC).timestamp())
    signature = signature_header(keys, "msg_a_start_1", now_s, b"{}")
    assert len(signature.split(" ")) == len(keys)
    for secret in keys:
        assert verified(secret, "{}", headers("msg_a_start_1", now_s, signature))
    assert not verified(b"x" * 24, "{}", headers("msg_a_start_1", now_s, signature))


def test_b066_keys_have_one_underscore_over_many_rotations() -> None:
    for _ in range(200):
        key = secret_key(secrets.token_bytes(32))
        assert key.startswith("whsec_") and key.count("_") == 1 and "-" not in key
        assert secret_key(read_secret_key(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec-MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2La_-aSw",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
    ],
)
def test_what_is_no_secret_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(BadSecret) as caught:
        read_secret_keys([text])
    assert not text or text not in str(caught.value).replace("whsec_", "", 1) or text == "whsec_"


def test_a_file_may_have_blank_lines_and_needs_a_secret() -> None:
    one, two = secret_key(b"a" * 24), secret_key(b"b" * 64)
    assert read_secret_keys([one, "", f"  {two} "]) == (b"a" * 24, b"b" * 64)
    with pytest.raises(BadSecret):
        read_secret_keys(["", "  "])
