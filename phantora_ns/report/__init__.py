"""What is told to the user about a run: from the ranks' shared pages and hub.json, never from the
running simulation."""
