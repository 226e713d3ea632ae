"""`python -m refold`: the command line, where no console script is on the path."""

from .cli import main

if __name__ == "__main__":
    main(prog_name="refold")
