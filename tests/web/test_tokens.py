"""Tests of user tokens: a token authenticates the user that it names, and no other user."""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.web.services import check_problem, client_of, opened_app, settings_for
from threadkeep.agent.demo import DemoModel

ISSUER, AUDIENCE, SHARED = "https://login.example.org", "threadkeep", "a-secret-of-32-characters-at-least"
PRIVATE = generate_private_key(SECP256R1())
PEM = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def token(key: str | EllipticCurvePrivateKey = SHARED, algorithm: str = "HS256", **claims: object) -> dict[str, str]:
    """Return the headers with a token that is valid except for these claims."""
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + 60, **claims}
    payload = {name: value for name, value in given.items() if value is not None}
    signed = jwt.encode(payload, key, algorithm, headers={"kid": "k1"})
    return {"authorization": f"Bearer {signed}"}


def forged(claims: dict[str, object], algorithm: str, secret: bytes) -> str:
    """Return a token as an attacker writes it: signed with any bytes, or not at all."""
    parts = [json.dumps(part).encode() for part in ({"alg": algorithm, "typ": "JWT"}, claims)]
    said = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    digests = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512", "hs256": "sha256"}
    signature = hmac.digest(secret, said, digests[algorithm]) if algorithm in digests else b""
    return (said + b"." + urlsafe_b64encode(signature).rstrip(b"=")).decode()


@pytest.fixture
def jwks() -> Iterator[str]:
    """Return the URL of an issuer's keys."""
    key = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(PRIVATE.public_key())), "kid": "k1"}
    body = json.dumps({"keys": [key]}).encode()

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/keys"
        server.shutdown()


async def service_with(folder: Path, key: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Yield a client of a service that accepts the issuer's tokens."""
    values = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_key": key}
    settings = settings_for(folder, **values, api_keys="web:one")
    async with opened_app(DemoModel(), settings) as app, client_of(app) as client:
        yield client


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client of a service that shares a secret with the issuer."""
    async for client in service_with(tmp_path, SHARED):
        yield client


async def test_a_token_authenticates_its_user(client: httpx2.AsyncClient) -> None:
    """A token cannot access another user's data or administer. A key still works beside it."""
    answer = (await client.post("/api/v1/chat", json={"message": "hi"}, headers=token())).json()
    address = f"/api/v1/sessions/{answer['session_id']}"
    assert (await client.get(address, headers=token())).json()["user_id"] == "ann"
    check_problem(await client.get(address, headers=token(sub="bob")), 404, "session-not-found")
    check_problem(await client.get(f"{address}?user_id=bob", headers=token()), 404, "user-not-found")
    check_problem(await client.delete("/api/v1/users/ann", headers=token()), 403, "scope-missing")
    assert (await client.get(address, headers={"x-api-key": "one"})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        token(exp=time.time() - 60),
        token(exp=None),
        token(iss="https://other.example"),
        token(aud="other"),
        token(aud=None),
        token(sub=None),
        token(sub=""),
        token(sub=" "),
        token(sub="a\nb"),
        token(nbf=time.time() + 600),
        token("another-secret-of-32-characters-or-so"),
        token(PRIVATE, "ES256"),
        {"authorization": "Bearer eyJ.x.y"},
    ],
)
async def test_any_other_token_is_refused(client: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    """An invalid token is refused without a reason."""
    check_problem(await client.get("/api/v1/sessions", headers=headers), 401, "token-invalid")


async def test_a_public_key_is_no_shared_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that is signed with the public key is refused, even if the library would accept the key as a secret."""
    monkeypatch.setattr(jwt.algorithms.HMACAlgorithm, "prepare_key", lambda _, key: key.encode())
    async for client in service_with(tmp_path, PEM):
        assert (await client.get("/api/v1/sessions", headers=token(PRIVATE, "ES256"))).status_code == 200
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 60}
        for algorithm in ("HS256", "HS384", "HS512", "none", "None", "NONE", "hs256"):
            for secret in (PEM, PEM.strip(), ""):
                headers = {"authorization": f"Bearer {forged(claims, algorithm, secret.encode())}"}
                check_problem(await client.get("/api/v1/sessions", headers=headers), 401, "token-invalid")


async def test_a_shared_secret_signs_and_nothing_else(client: httpx2.AsyncClient) -> None:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 60}
    headers = {"authorization": f"Bearer {forged(claims, 'HS256', SHARED.encode())}"}
    assert (await client.get("/api/v1/sessions", headers=headers)).status_code == 200
    for algorithm, secret in (("none", b""), ("none", SHARED.encode()), ("HS256", b"")):
        headers = {"authorization": f"Bearer {forged(claims, algorithm, secret)}"}
        check_problem(await client.get("/api/v1/sessions", headers=headers), 401, "token-invalid")


async def test_the_issuers_keys_are_read_from_its_url(tmp_path: Path, jwks: str) -> None:
    """The key is selected by the id in the token."""
    async for client in service_with(tmp_path, jwks):
        assert (await client.get("/api/v1/sessions", headers=token(PRIVATE, "ES256"))).status_code == 200
        check_problem(await client.get("/api/v1/sessions", headers=token()), 401, "token-invalid")


async def test_unavailable_issuer_keys_are_a_503(tmp_path: Path) -> None:
    """If the issuer's keys cannot be read, the response is 503, because the token may be valid."""
    async for client in service_with(tmp_path, "http://127.0.0.1:9/keys"):
        response = await client.get("/api/v1/sessions", headers=token(PRIVATE, "ES256"))
        check_problem(response, 503, "issuer-unavailable")
