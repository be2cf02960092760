"""Generated from proto/ by `make wire`. Never edited."""
