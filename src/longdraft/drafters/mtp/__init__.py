"""MTP: the multi-token-prediction layers in a target's own checkpoint draft a chain or a tree."""
