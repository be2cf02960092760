"""One module per noun. A route translates, calls one use case, and translates the answer."""
