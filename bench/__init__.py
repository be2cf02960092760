"""Measurements: `make bench`. One lane a module; __main__ runs them, prints one table and writes bench/latest.json."""
