"""llama-server's own paths."""
