"""The commands, by what they are for, and what they print with. `cli.py` puts them together."""
