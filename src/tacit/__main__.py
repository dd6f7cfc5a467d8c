"""``python -m tacit``: the command, where its script is not on the path."""

from tacit.cli import main

if __name__ == "__main__":
    main()
