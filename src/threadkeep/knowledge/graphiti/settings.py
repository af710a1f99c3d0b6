"""Settings of Graphiti that are read from the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode

from threadkeep.errors import InvalidSettings
from threadkeep.records.graphiti import GraphitiOptions, check_group_id, normalised_endpoint
from threadkeep.records.knowledge import ScopeKind


class GraphitiSettings(BaseSettings):
    """Settings of Graphiti. The subclass `Settings` parses lists, accepts values in upper case, and checks paths."""

    graphiti_enabled: bool = Field(False, description="Whether turns are sent to a Graphiti server, with consent.")
    graphiti_endpoint: str = Field("", description="Address of the Graphiti server, such as http://graph:8000.")
    graphiti_api_key: SecretStr | None = Field(None, description="Key for a proxy in front of it, as a bearer token.")
    graphiti_transport: Literal["rest", "mcp"] = Field(
        "rest", description="rest for the REST server, mcp for the MCP server."
    )
    graphiti_timeout_ms: int = Field(10_000, ge=100, le=600_000, description="Timeout of a request in milliseconds.")
    graphiti_max_batch: int = Field(20, ge=1, le=100, description="Maximum number of messages per request.")
    graphiti_max_queue: int = Field(10_000, ge=1, description="Maximum queued messages; older ones are dropped.")
    graphiti_max_message_chars: int = Field(4_000, ge=1, description="Characters after which a message is cut.")
    graphiti_scopes: Annotated[list[ScopeKind], NoDecode] = Field(
        default_factory=lambda: list[ScopeKind](("session", "workspace")),
        description="Scopes to send turns to, comma-separated: session, workspace (shared by all its users), user.",
    )
    graphiti_group_id_strategy: Literal["hashed", "raw"] = Field(
        "hashed", description="Ids of groups: hashed, or raw to be readable in the graph."
    )
    graphiti_include_system: bool = Field(False, description="Whether notes (role system) are sent too.")
    graphiti_include_git: bool = Field(False, description="Whether to send branch and commit of GRAPHITI_GIT_FOLDER.")
    graphiti_git_folder: Path | None = Field(None, description="Absolute path of the Git folder to read.")
    graphiti_confirm_seconds: float = Field(
        60.0, gt=0, description="Seconds without progress after which an accepted message is sent again."
    )
    graphiti_recall_enabled: bool = Field(False, description="Whether chats get facts from Graphiti.")
    graphiti_recall_max_facts: int = Field(10, ge=1, le=100, description="Maximum number of facts per turn.")
    graphiti_recall_timeout_ms: int = Field(
        2_000, ge=50, le=60_000, description="Maximum milliseconds that a turn waits for Graphiti."
    )
    graphiti_recall_scopes: Annotated[list[Literal["auto", "session", "workspace", "user"]], NoDecode] = Field(
        default_factory=lambda: list[Literal["auto", "session", "workspace", "user"]](("auto",)),
        description="Scopes to search, comma-separated: session, workspace, user; auto adds user if relevant.",
    )
    graphiti_recall_extra_group_ids: Annotated[list[str], NoDecode] = Field(
        default_factory=list, description="Groups of other programs to search too, comma-separated."
    )

    @field_validator("graphiti_scopes", "graphiti_recall_scopes")
    @classmethod
    def _not_empty(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError("name at least one")
        return list(dict.fromkeys(value))

    @field_validator("graphiti_recall_extra_group_ids")
    @classmethod
    def _group_ids(cls, value: list[str]) -> list[str]:
        return [check_group_id(group_id) for group_id in value]

    @field_validator("graphiti_endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        return normalised_endpoint(value) if value.strip() else ""

    @model_validator(mode="after")
    def _check_graphiti(self) -> Self:
        if self.graphiti_enabled and not self.graphiti_endpoint:
            raise InvalidSettings(
                "THREADKEEP_GRAPHITI_ENABLED needs THREADKEEP_GRAPHITI_ENDPOINT: the address of the Graphiti server, "
                "such as http://graph:8000.",
                variable="THREADKEEP_GRAPHITI_ENDPOINT",
            )
        if self.graphiti_include_git and self.graphiti_git_folder is None:
            raise InvalidSettings(
                "THREADKEEP_GRAPHITI_INCLUDE_GIT needs THREADKEEP_GRAPHITI_GIT_FOLDER: the path of a git folder.",
                variable="THREADKEEP_GRAPHITI_GIT_FOLDER",
            )
        return self

    def graphiti_options(self, workspace: str | None, *, promotes: bool = False) -> GraphitiOptions | None:
        """Return the options of Graphiti, or None if it is off."""
        if not self.graphiti_enabled:
            return None
        key = self.graphiti_api_key
        return GraphitiOptions(
            endpoint=self.graphiti_endpoint,
            api_key=None if key is None else key.get_secret_value(),
            transport=self.graphiti_transport,
            timeout_seconds=self.graphiti_timeout_ms / 1000,
            max_batch=self.graphiti_max_batch,
            max_queue=self.graphiti_max_queue,
            max_message_chars=self.graphiti_max_message_chars,
            scopes=tuple(self.graphiti_scopes),
            group_id_strategy=self.graphiti_group_id_strategy,
            include_system=self.graphiti_include_system,
            git_folder=str(self.graphiti_git_folder) if self.graphiti_include_git else None,
            promotes=promotes,
            workspace=workspace,
            confirm_seconds=self.graphiti_confirm_seconds,
            recall_enabled=self.graphiti_recall_enabled,
            recall_max_facts=self.graphiti_recall_max_facts,
            recall_timeout_seconds=self.graphiti_recall_timeout_ms / 1000,
            recall_scopes=tuple(self.graphiti_recall_scopes),
            recall_extra_group_ids=tuple(self.graphiti_recall_extra_group_ids),
        )
