"""What a model call's budget depends on: which model it is, how much it takes, how its tokens are counted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from threadkeep.context.budget import context_window


@dataclass(frozen=True)
class ModelFacts:
    """A model's name (None if it does not say) and its context window in tokens."""

    name: str | None
    window: int


def facts_of(model: BaseChatModel | None, override: int | None = None) -> ModelFacts:
    """The facts of a model: its window by the override, else by its profile, else by its name."""
    name = name_of_model(model)
    profile = getattr(model, "profile", None)
    told = profile.get("max_input_tokens") if isinstance(profile, Mapping) else None
    return ModelFacts(name, context_window(name, override if override is not None else told))


def name_of_model(model: BaseChatModel | None) -> str | None:
    """The name that a LangChain chat model gives its provider."""
    for attribute in ("model_name", "model"):
        name = getattr(model, attribute, None)
        if isinstance(name, str) and name:
            return name
    return None


def tools_text(tools: Sequence[BaseTool | dict[str, Any] | Any]) -> str:
    """What a provider is told of the tools, as JSON: it counts as input."""
    return json.dumps([convert_to_openai_tool(tool) for tool in tools], ensure_ascii=False) if tools else ""
