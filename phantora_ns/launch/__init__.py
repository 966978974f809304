"""From a user's command line to running nodes and back to one exit code."""
