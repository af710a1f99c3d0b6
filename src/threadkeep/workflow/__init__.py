"""How an agent uses it: middleware and nodes for LangChain and LangGraph, message conversion, and the chat itself."""
