"""Requests and answers in the shapes of OpenAI's API."""
