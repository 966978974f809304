"""What compiled GPU code says about its kernels: names, registers and shared memory."""
