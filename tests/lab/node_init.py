"""Process 1 of a node: arranges what the node sees, then reaps. When it dies, the whole node dies with it.

Run as a script inside fresh mount, network and process namespaces; imports nothing of the lab. Its argument
is a JSON object: `binds` (inside path to the folder or file that is seen there), `write` (path to text,
written after the binds) and `ready` (a file made when all is in place).
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


def main(order: str) -> None:
    """Arrange, say so, reap for ever."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    wanted = json.loads(order)
    # Mounts with propagation reach from a pod to its node, and never the machine.
    for argv in (["--make-rprivate", "/"], ["-t", "proc", "proc", "/proc"], ["--make-rshared", "/"]):
        subprocess.run(["mount", *argv], check=True)
    for inside, source in wanted["binds"].items():
        subprocess.run(["mount", "--bind", source, inside], check=True)
    for path, text in wanted["write"].items():
        Path(path).write_text(text)
    Path(wanted["ready"]).touch()
    while True:
        signal.sigwait({signal.SIGCHLD, signal.SIGTERM})
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            continue


main(sys.argv[1])
