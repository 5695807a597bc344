"""LongSpec: a draft block of one layer that reads the target's KV cache."""
