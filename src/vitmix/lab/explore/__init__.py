"""A local page to play with methods: pure functions from inputs to typed results, and a thin Gradio page over them."""
