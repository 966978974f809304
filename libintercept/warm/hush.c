/* warm/hush.c - what an image's libraries say of objects that no interpreter frees.
 *
 * Why it exists: an interpreter that ends does not free what its image holds, or every rank would
 * write to all of it. nanobind (Triton's library, from 3.9 on) then lists its classes and functions
 * on stderr as leaked. Both functions are registered with Py_AtExit(), which calls the last first:
 * phantora_speak before the image's modules are imported, and phantora_hush after. So stderr is
 * silent for what these modules registered themselves, and for nothing of the job's. */
#include "base/api.h"
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static int kept = -1;

PH_API(void, phantora_hush, (void))
{
    int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere < 0) return;
    fflush(stderr);
    kept = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    if (kept >= 0) dup2(nowhere, STDERR_FILENO);
    close(nowhere);
}

PH_API(void, phantora_speak, (void))
{
    if (kept < 0) return;
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    kept = -1;
}
