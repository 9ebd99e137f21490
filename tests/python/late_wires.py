"""Wires between pairs of TAP devices that bring every frame so many milliseconds late.

Usage: late_wires.py MILLISECONDS NAME NAME [NAME NAME ...]

Makes the devices, says "ready", and carries frames until its standard input ends; the devices go with it.
"""

import fcntl
import heapq
import itertools
import os
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
# Largest frame of a device without offloads, and more.
FRAME = 4096
# Frames on their way; more are lost, as in any queue.
MOST = 20_000


def tap(name):
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI)
    fcntl.ioctl(device, TUNSETIFF, request)
    return device


def main(milliseconds, names):
    devices = [tap(name) for name in names]
    other = {}
    for one, two in zip(devices[::2], devices[1::2]):
        other[one], other[two] = two, one
    print("ready", flush=True)
    under_way = []
    order = itertools.count()
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable, _, _ = select.select([0, *devices], [], [], wait)
        if 0 in readable and not os.read(0, 1):
            return
        for device in readable:
            # Frames that come while the device is down are errors, and nobody's.
            try:
                frame = os.read(device, FRAME) if device else b""
            except OSError:
                continue
            if frame and len(under_way) < MOST:
                due = time.monotonic() + milliseconds / 1000
                heapq.heappush(under_way, (due, next(order), other[device], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, device, frame = heapq.heappop(under_way)
            try:
                os.write(device, frame)
            except OSError:
                pass


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
