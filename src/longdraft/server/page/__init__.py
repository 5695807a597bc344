from __future__ import annotations


def page(trace=None):
    return "<!doctype html>soon", "default-src 'none'"
