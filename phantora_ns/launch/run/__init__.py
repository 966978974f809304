"""One run: from a validated request to an exit code, with nothing left behind."""
