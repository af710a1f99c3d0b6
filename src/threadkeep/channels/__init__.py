"""Bots on the platforms where people talk: Telegram and WeCom."""
