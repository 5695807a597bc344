"""How models write calls of functions and reasoning: one small class per format, found in the chat
template.
"""
