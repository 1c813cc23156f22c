"""Tables of replays: rows in columns, and frames stored once."""
