"""The scopes of knowledge that a run may use: named by its config and its context, never by the model."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.runnables import RunnableConfig

from threadkeep.agent.invocation import session_for, workspace_in
from threadkeep.agent.turn_options import IdOf, TurnOptions
from threadkeep.errors import InvalidInput
from threadkeep.history.session import Session
from threadkeep.memory import Memory
from threadkeep.records.knowledge import SCOPE_KINDS, Scope, ScopeKind

ALL_SCOPES: tuple[ScopeKind, ...] = ("session", "workspace", "user")


class RunScopes:
    """Finds the scopes of a run: its session, its workspace and its person, as far as it has them.

    A run without a user has no user scope, and one without a workspace no workspace scope: nobody shares a default.
    """

    def __init__(
        self,
        memory: Memory,
        kinds: Sequence[ScopeKind],
        *,
        workspace: str | IdOf | None = None,
        session_id: IdOf | None = None,
        user_id: IdOf | None = None,
    ) -> None:
        """See `knowledge_tools` for the arguments.

        Raises:
            InvalidInput: there are no such scopes, or none at all.
        """
        if isinstance(kinds, str) or not kinds or not set(kinds) <= set(SCOPE_KINDS):
            raise InvalidInput(f"scopes names one or more of {', '.join(SCOPE_KINDS)}.")
        self._memory = memory
        self._kinds = kinds
        self._workspace = workspace
        self._options = TurnOptions(session_id=session_id, user_id=user_id)

    def session(self, config: RunnableConfig) -> Session:
        """Return the session of a run.

        Raises:
            InvalidKey: the run names none.
        """
        return session_for(self._memory, self._options, config)

    def of(self, session: Session, config: RunnableConfig) -> dict[ScopeKind, Scope]:
        """Return the scopes of a run in a session, by their kinds, the most specific first."""
        owners = {
            "session": session.session_id,
            "workspace": workspace_in(config, self._workspace),
            "user": session.user_id,
        }
        return {kind: Scope(kind, owner) for kind in ALL_SCOPES if kind in self._kinds and (owner := owners[kind])}
