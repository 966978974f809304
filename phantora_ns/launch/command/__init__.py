"""What the user typed: the job's command and the options of its launcher."""
