"""What runs, and goes on: carries runs out, in this process or another, however often a process dies at it."""
