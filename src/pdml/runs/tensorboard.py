"""TensorBoard events, written in the calling thread.

tensorboardX's own SummaryWriter uses a thread; if that dies, of a full disk or a clock that is set back, the run waits
for it forever.
"""

import socket
import struct
import time
from typing import Any

from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from pdml.runs.lease import Lease

events: Any = event_pb2  # protobuf makes its names at import


class Board:
    """One event file per start or resume of a run."""

    def __init__(self, lease: Lease, step: int):
        self._lease = lease
        self._path = lease.run / f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{step}"
        self._append(events.Event(file_version="brain.Event:2"))
        if step:  # later steps in other files no longer count
            log = events.SessionLog
            self._append(events.Event(step=step + 1, session_log=log(status=log.START)))

    def add(self, values: dict[str, float | int], step: int) -> None:
        """Write some numbers of a step."""
        self._append(*(events.Event(step=step, summary=scalar(name, value)) for name, value in values.items()))

    def _append(self, *written: Any) -> None:
        """Write events as records: length and content, each with its checksum."""
        records = b""
        for event in written:
            event.wall_time = time.time()
            for part in (struct.pack("<Q", event.ByteSize()), event.SerializeToString()):
                records += part + struct.pack("<I", masked_crc32c(part))
        self._lease.append(self._path, records)
