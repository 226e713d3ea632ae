"""The engine: programs, commands, event bodies, the live driver and the replay driver. It knows no Postgres."""
