"""The verbs a client may ask for. gRPC, REST, web and CLI are adapters over these; rules found there move here."""
