"""Chunks of a stream, as they are written to a connection."""

import h11

from npurt.serve.run import ChunkedConnection

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def test_parts_are_those_of_h11_until_the_client_has_gone():
    gone = []
    connection = ChunkedConnection(lambda: bool(gone))
    connection.receive_data(REQUEST)
    assert isinstance(connection.next_event(), h11.Request)
    connection.next_event()
    head = connection.send(
        h11.Response(status_code=200, headers=[("Transfer-Encoding", "chunked")])
    )
    assert head.startswith(b"HTTP/1.1 200 ")
    assert connection.send(h11.Data(data=b"some text ")) == b"a\r\nsome text \r\n"
    assert connection.send(h11.Data(data=b"")) == b""  # an empty chunk would end the stream

    gone.append(True)  # asyncio warns about repeated writes to a closed connection
    assert connection.send(h11.Data(data=b"more")) == b""
