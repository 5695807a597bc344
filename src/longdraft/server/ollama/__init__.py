"""Ollama's API for text."""
