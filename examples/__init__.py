"""Programs that show weft, each run as a test."""
