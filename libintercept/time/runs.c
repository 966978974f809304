/* time/runs.c - of which kernels the work of a term consists, in order.
 *
 * Why it exists: each kernel is slowed by its own share when communication overlaps it, and often
 * only some of the kernels since a vertex are overlapped. So the hub needs their order, not only
 * their sum.
 *
 * Rules: a kernel is never changed once it is here, because expressions are copied and go on
 * separately. Only the last RUNS kernels are kept; what is older is packed as one. Neighbours are
 * packed as one where that moves no more than MOVED_NS of their contention. */
#include "time/runs.h"
#include "base/fork.h"
#include <string.h>

enum { RUNS = 4096, MOVED_NS = 1000 };

struct kernel {
    ph_run_id before;
    int64_t work, contention;
};
static struct kernel kernels[RUNS];
static ph_run_id newest;

static struct kernel *find(ph_run_id run)
{
    return run && newest - run < RUNS ? &kernels[run % RUNS] : NULL;
}

ph_run_id ph_run_after(ph_run_id before, int64_t work, int64_t contention)
{
    newest++;
    kernels[newest % RUNS] = (struct kernel){before, work, contention};
    return newest;
}

ph_run_id ph_run_before(ph_run_id run)
{
    const struct kernel *kernel = find(run);
    return kernel ? kernel->before : 0;
}

/* The contention that is moved from one kernel to the other when they get one rate. */
static int64_t moved(const struct kernel *one, const struct kernel *other)
{
    double both = (double)(one->work + other->work);
    double by = (double)one->contention * (double)other->work -
                (double)other->contention * (double)one->work;
    return both > 0 ? (int64_t)((by < 0 ? -by : by) / both) : 0;
}

void ph_runs_pack(struct ph_pack *pack, ph_run_id run, int64_t work, int64_t contention)
{
    static struct kernel run_of[RUNS + 1]; /* newest first */
    uint32_t count = 0;
    for (const struct kernel *kernel; work > 0 && count < RUNS && (kernel = find(run)) &&
                                      kernel->work <= work && kernel->contention <= contention;
         run = kernel->before) {
        struct kernel *last = count ? &run_of[count - 1] : NULL;
        work -= kernel->work, contention -= kernel->contention;
        if (last && moved(last, kernel) <= MOVED_NS)
            last->work += kernel->work, last->contention += kernel->contention;
        else
            run_of[count++] = *kernel;
    }
    if (work || !count)
        run_of[count++] = (struct kernel){0, work, contention};
    else
        run_of[count - 1].contention += contention;
    ph_pack_array(pack, count * 2);
    while (count--) {
        ph_pack_int(pack, run_of[count].work);
        ph_pack_int(pack, run_of[count].contention);
    }
}
