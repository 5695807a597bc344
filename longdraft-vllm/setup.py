"""In a checkout, longdraft itself is installed from there; elsewhere pip looks for it as for any
other package.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import setup

CHECKOUT = Path(__file__).resolve().parent.parent
HERE = (CHECKOUT / "src" / "longdraft" / "version.py").is_file()

setup(install_requires=[f"longdraft @ {CHECKOUT.as_uri()}" if HERE else "longdraft"])
