"""DFlash: a block of a few layers on the target's hidden states drafts several tokens in one
pass.
"""
