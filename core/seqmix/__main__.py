"""``python -m seqmix``."""

from __future__ import annotations

from seqmix.cli import main

if __name__ == "__main__":
    main()
