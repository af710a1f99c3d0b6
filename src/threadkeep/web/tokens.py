"""Tokens of users: a browser with a signed token (JWT) speaks for the user that the token names."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

import jwt

from threadkeep.records.api_keys import KeyScope
from threadkeep.web.callers import Caller
from threadkeep.web.problems import ProblemRaised, make_problem
from threadkeep.web.rate_limits import RateLimits

_PUBLIC_KEY_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
_SHARED_KEY_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
_LEEWAY_SECONDS: Final = 10
_KEYS_TIMEOUT_SECONDS: Final = 5
_MAX_USER: Final = 512

_INVALID = "The token is expired, not for this service, or not signed by its issuer; sign in again."
_KEYS_AWAY = "The keys of the tokens' issuer cannot be read; try again."

_logger = logging.getLogger("threadkeep.web")


@dataclass(frozen=True)
class TokenOptions:
    """The tokens that are accepted. `key` is the issuer's public key, the address of its keys, or a shared secret."""

    issuer: str
    audience: str
    key: str
    user_claim: str = "sub"
    scope: KeyScope = "write"


class UserTokens:
    """The check of tokens. Each speaks for one user."""

    def __init__(self, options: TokenOptions) -> None:
        self._options = options
        self._jwks: jwt.PyJWKClient | None = None
        if options.key.startswith(("https://", "http://")):
            self._jwks = jwt.PyJWKClient(options.key, timeout=_KEYS_TIMEOUT_SECONDS)
        # A public key never verifies a token that is signed with it as a shared secret.
        shared = self._jwks is None and not options.key.lstrip().startswith("-----BEGIN")
        self._algorithms = _SHARED_KEY_ALGORITHMS if shared else _PUBLIC_KEY_ALGORITHMS

    @staticmethod
    def is_token(given: bytes) -> bool:
        """Return whether a credential has the form of a token: three parts, the first of them a JSON object."""
        return given.startswith(b"eyJ") and given.count(b".") == 2

    async def caller(self, given: bytes, limits: RateLimits) -> Caller:
        """Return the caller with a token.

        Raises:
            ProblemRaised: the token is not valid (401), or the issuer's keys cannot be read (503).
        """
        try:
            claims = await self._claims(given.decode("ascii"))
        except jwt.PyJWKClientConnectionError as error:
            _logger.warning("the keys of the tokens' issuer cannot be read: %s", type(error).__name__)
            raise ProblemRaised(make_problem(503, "issuer-unavailable", _KEYS_AWAY)) from None
        except (jwt.PyJWTError, ValueError):
            raise _refusal() from None
        user_id = claims.get(self._options.user_claim)
        if not isinstance(user_id, str) or not 0 < len(user_id) <= _MAX_USER or not user_id.isprintable():
            raise _refusal()
        return Caller(f"token of {user_id}", self._options.scope, user_id, limits)

    async def _claims(self, token: str) -> dict[str, Any]:
        options = self._options
        key: object = options.key
        if self._jwks is not None:
            key = (await asyncio.to_thread(self._jwks.get_signing_key_from_jwt, token)).key
        return jwt.decode(
            token,
            key,  # type: ignore[arg-type]
            algorithms=self._algorithms,
            issuer=options.issuer,
            audience=options.audience,
            leeway=_LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud", options.user_claim]},
        )


def _refusal() -> ProblemRaised:
    return ProblemRaised(
        make_problem(401, "token-invalid", _INVALID), {"WWW-Authenticate": 'Bearer error="invalid_token"'}
    )
