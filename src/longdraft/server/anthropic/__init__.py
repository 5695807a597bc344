"""Anthropic's Messages API over the same chats: requests, answers and errors in its shape."""
