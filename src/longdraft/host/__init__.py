"""This machine and this installation, as the system describes them.

Nothing is measured, and torch is not imported.
"""
