"""The REST API: translates between HTTP and the use cases, and decides nothing.

    listener.py   sockets, TLS, bounds on connections and slow peers, drain        (uvicorn)
    edge.py       around every request: its id, its path, the last resort for errors
    app.py        the routes under one roof, and the OpenAPI document               (Litestar)
    auth.py       who is calling, by the table of permissions that gRPC uses
    request.py    the request as routes see it: caller, use cases, bounded body
    codec.py      values that several routes translate
    problems.py   errors as problem details (RFC 9457)
    openapi.py    what the generated document says besides the routes
    routes/       one module per noun

A route names the gRPC method of the same use case (`uses=`). The rule of that method decides who may call it and how
large a request may be. A route without one cannot be called.
"""
