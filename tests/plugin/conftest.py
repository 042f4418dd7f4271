"""These tests need what only the engine's environment has (torch, vLLM): its packages come first on the path."""

import os
import sys

from tools.images.engine_venv import engine_venv
from tools.images.recipes import ROOT

HOME = engine_venv()
SITE = HOME / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
FIRST = [str(ROOT / "images" / "engine"), str(SITE)]
sys.path[:0] = FIRST
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait by spinning make small machines crawl
os.environ["PYTHONPATH"] = ":".join(FIRST)  # vLLM looks at a model's class in a process of its own
