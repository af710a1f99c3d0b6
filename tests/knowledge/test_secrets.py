"""Tests of recognizing texts that look like secrets, which are not remembered."""

from __future__ import annotations

import pytest

from threadkeep.knowledge.promotion import looks_like_secret


@pytest.mark.parametrize(
    "text",
    [
        "My password is hunter2",
        "wifi_password: tr0ub4dor",
        "PASSWORD=abc123",
        "the token is 8f3a9c",
        "api_key: xyz789",
        "API key = xyz789",
        "apikey: xyz789",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABCDEFG",
        "sk-proj-abcdefgh12345678",
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-123456789012-abc",
        "我的密码是abc123",
        'config {"secret": "s3cr3t"}',
        "password is: hunter22",
        "the password to the server is hunter22",
        "password hunter22",
        "pw: swordfish",
        "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.abc",
        "authorization=Basic dXNlcjpwYXNz",
        "token=abcdef",
    ],
)
def test_secrets_are_recognized_by_their_shape_or_the_word_before_them(text: str) -> None:
    assert looks_like_secret(text)
    assert looks_like_secret(f"Please remember: {text}. Thanks!")


@pytest.mark.parametrize(
    "text",
    [
        "diet: vegetarian",
        "She forgot her password.",
        "We count tokens before each call.",
        "The secret of a good soup is time.",
        "password policy: ask the administrator"[:15],
        "task-list-of-today",
        "ask-someone-else-first",
        "He likes skating and risk-taking.",
        "AKIRA is a film",
        "the key question is when",
        "the secret is patience",
        "token: refresh it daily",
        "the password to success is patience",
        "They went to Password Island in 2024.",
        "the bearer of good news",
    ],
)
def test_other_texts_are_no_secrets(text: str) -> None:
    """Words such as "password" also occur in ordinary sentences."""
    assert not looks_like_secret(text)


@pytest.mark.parametrize(
    "part", ["token:", "password ", "secret for ", "api key ", "eyJ ", "pw", "password to is ", " "]
)
def test_a_long_text_is_read_in_linear_time(part: str) -> None:
    """Quadratic time would take hours."""
    assert not looks_like_secret(part * 20_000 + "and so on")
