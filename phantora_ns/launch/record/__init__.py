"""What is measured or recorded: who leads, and which recorded host times and values are used."""
