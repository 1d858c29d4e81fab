"""Slow the network: ``proxy.py LISTEN TARGET MS`` forwards TCP on loopback, each direction late by half of MS."""

import asyncio
import socket
import sys

BYTES_AT_A_TIME = 1 << 18


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Forward everything, in order, after ``delay_s``, and the end too."""
    loop = asyncio.get_running_loop()
    while data := await reader.read(BYTES_AT_A_TIME):
        loop.call_later(delay_s, writer.write, data)
    loop.call_later(delay_s, writer.close)


async def main(listen: int, target: int, delay_ms: float) -> None:
    delay_s = delay_ms / 2000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        for side in (writer, far_writer):
            side.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(
            pump(reader, far_writer, delay_s), pump(far_reader, writer, delay_s), return_exceptions=True
        )

    server = await asyncio.start_server(serve, "127.0.0.1", listen)
    await server.serve_forever()


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
