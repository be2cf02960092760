"""What a job costs, counted and not timed, against what was recorded; figures in seconds are `make bench`'s."""
