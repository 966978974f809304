"""Why it exists: the leader reads the records of CUPTI 12 and 13 at fixed places. The oracle is a
compiler that reads the installed header."""

import re
import subprocess
from pathlib import Path

import pytest

SITE = Path(pytest.__file__).parents[1]
# of a record: kind, start, end, stream, correlation (libintercept/leader/measure/cupti.c)
WORK = {"kind": 0, "start": 16, "end": 24}
KERNEL = WORK | {"streamId": 48, "correlationId": 92}
MOVE = WORK | {"streamId": 40, "correlationId": 44}
EXTERNAL = {"kind": 0, "externalKind": 4, "externalId": 8, "correlationId": 16}
NUMBERS = {
    "CUPTI_ACTIVITY_KIND_MEMCPY": 1,
    "CUPTI_ACTIVITY_KIND_MEMSET": 2,
    "CUPTI_ACTIVITY_KIND_KERNEL": 3,
    "CUPTI_ACTIVITY_KIND_DRIVER": 4,
    "CUPTI_ACTIVITY_KIND_RUNTIME": 5,
    "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL": 10,
    "CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION": 39,
    "CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0": 3,
}


def newest(text, record):
    """The newest form of a record that a header declares: CUpti_ActivityKernel10."""
    versions = re.findall(rf"\}} (CUpti_Activity{record}(\d*));", text)
    return max(versions, key=lambda found: int(found[1] or 0))[0]


def test_records_lie_where_the_leader_reads_them(root, tmp_path):
    headers = [*(SITE / "nvidia").glob("*/include/cupti_activity.h")]
    crt = SITE / "triton" / "backends" / "nvidia" / "include"
    if not headers or not crt.exists():
        pytest.skip("no CUPTI headers are installed beside torch")
    text = headers[0].read_text()
    records = [(newest(text, "Kernel"), KERNEL), (newest(text, "ExternalCorrelation"), EXTERNAL)]
    records += [(newest(text, record), MOVE) for record in ("Memcpy", "Memset")]
    checks = [
        (f"offsetof({record}, {member})", offset)
        for record, members in records
        for member, offset in members.items()
    ]
    checks += NUMBERS.items()
    source = tmp_path / "records.c"
    source.write_text(
        "#include <stddef.h>\n#include <cupti.h>\n"
        + "".join(f'_Static_assert({what} == {value}, "{what}");\n' for what, value in checks)
    )
    folders = sorted({*(SITE / "nvidia").glob("*/include"), crt})
    command = ["cc", "-std=gnu11", *(f"-I{one}" for one in folders), "-c", source]
    subprocess.run([*command, "-o", tmp_path / "records.o"], check=True)
