"""The MCP server over HTTP: its tokens are the keys of the service."""

from __future__ import annotations

from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl

from threadkeep.adapters.mcp import McpCaller, memory_server
from threadkeep.errors import InvalidSettings
from threadkeep.memory import Memory
from threadkeep.records.api_keys import KEY_SCOPES
from threadkeep.settings import Settings
from threadkeep.web.keys import KeyRing
from threadkeep.web.rate_limits import RateLimits


class KeyVerifier:
    """A verifier of bearer tokens that accepts the keys of the service."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the owner of a key; None if it is no valid key."""
        await self._keys.refresh()
        caller = self._keys.caller(token.encode("utf-8", "surrogateescape"), RateLimits())
        if caller is None:
            return None
        scopes: list[str] = [*KEY_SCOPES[: KEY_SCOPES.index(caller.scope) + 1]]
        return AccessToken(token="", client_id=caller.name, scopes=scopes, subject=caller.user_id)


async def keyed_server(memory: Memory, settings: Settings, address: str, *, writes: bool) -> MCPServer[object]:
    """Return an MCP server whose clients send a key of the service as their bearer token.

    Raises:
        InvalidSettings: there are no keys.
    """
    configured = {name: key.get_secret_value() for name, key in settings.api_keys.items()}
    keys = KeyRing(memory.api_keys, configured, clock=memory.clock)
    await keys.refresh()
    if not keys.in_use:
        sentence = "Over HTTP each client needs a key; make one with `threadkeep keys add NAME --user ID`."
        raise InvalidSettings(sentence, variable="THREADKEEP_API_KEYS")
    auth = AuthSettings(issuer_url=AnyHttpUrl(address), resource_server_url=None)
    return memory_server(memory, _caller, writes=writes, auth=auth, verifier=KeyVerifier(keys))


def _caller() -> McpCaller:
    """Return who sent the request that is served now."""
    token = get_access_token()
    if token is None:
        raise RuntimeError("A request without a token reached a tool.")
    return McpCaller(token.subject, writes="write" in token.scopes)
