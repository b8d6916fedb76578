"""``python -m dissensus`` is the ``dissensus`` command."""

from dissensus.cli import main

if __name__ == "__main__":
    main()
