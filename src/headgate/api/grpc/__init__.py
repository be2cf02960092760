"""The gRPC adapter: servicers, codec (wire ⇄ domain), the table of statuses."""
