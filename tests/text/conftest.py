"""Makes the helper module `vocabularies` importable, whatever way pytest imports tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
