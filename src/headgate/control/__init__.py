"""The verbs a client may ask for. gRPC, REST, web and CLI are skins over these; a rule found in a skin moves here."""
