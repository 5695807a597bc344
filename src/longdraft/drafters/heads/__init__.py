"""Heads on the target's hidden state: chained ones (TokenSwift) and separate ones (Medusa)."""
