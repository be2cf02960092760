"""What templates show: plain values, made from what use cases return. No rule of the queue is decided here."""
