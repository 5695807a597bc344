"""EAGLE-2 and EAGLE-3: a layer that continues the target's hidden states drafts a dynamic tree."""
