"""What users type to run Jubako, which hints name: `jubako`, or `./start` where that runs it."""

from __future__ import annotations

name = "jubako"
