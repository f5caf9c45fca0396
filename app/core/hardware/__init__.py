"""What this machine has: memory, swap and GPUs, one file per system."""
