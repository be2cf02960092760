"""The tools of development themselves: lanes of the benchmark, and recorded screens. `make test-tools` runs them."""
