"""What `vitmix bench` measures: whole training steps, the statistics alone, and how these grow."""
