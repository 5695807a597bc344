"""The audit: compares a method with plain decoding, token by token, and explains every
difference.
"""
