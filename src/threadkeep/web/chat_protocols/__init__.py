"""Protocols of chat front ends, one module each: OpenAI's chat completions, the AI SDK's UI messages, AG-UI."""
