"""``python -m prelax``, and ``torchrun -m prelax`` for several processes."""

from prelax.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
