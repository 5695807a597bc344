"""Drafters without weights: drafts from tokens seen earlier."""
