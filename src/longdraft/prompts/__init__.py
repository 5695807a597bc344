"""Stored prompts: keys and values that are kept, in memory and in files, for later requests."""
