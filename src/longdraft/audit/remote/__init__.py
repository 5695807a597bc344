"""Audit of a server over HTTP: its answers with speculation, against its answers without."""
