"""What a run takes of this machine: its GPUs, the environment of the processes, the sandbox."""
