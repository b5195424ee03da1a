"""`python -m mlbundle` is the command line."""

from mlbundle.cli.main import main

if __name__ == "__main__":
    main()
