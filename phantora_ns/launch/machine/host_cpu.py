"""The name of this machine's processor.

Why it exists: host times are worth something only together with the CPU on which they were
measured, so every recording says which it was.
"""

from __future__ import annotations

import platform


def host_cpu_name() -> str:
    """The model name, such as "AMD EPYC 9554"; the architecture where the system does not tell."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
