"""The decoding loop: one batch, many callers, or any number of prompts.

It knows drafters by their protocol only.
"""
