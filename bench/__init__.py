"""What is measured, not tested: each module runs as `python -m bench.FOLDER.MODULE` from the
repository's top folder."""
