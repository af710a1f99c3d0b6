"""Protocols of chat front ends: OpenAI's chat completions, the AI SDK's UI messages, AG-UI."""
