/* cubin.c - a cubin that a job loads: an ELF file with sections about its kernels. */
#include "../../../libintercept/base/environment.c"
#include "../../../libintercept/simulated/cuda/module.c"
#include "../../../libintercept/work/accesses.c"
#include "../../../libintercept/work/cubin.c"
#include "fuzz.h"

#include <setjmp.h>

struct ph_kernel {
    struct ph_kernel *next;
    const struct ph_kernel_param *params;
};
static struct ph_kernel *made;
static jmp_buf refused;
static unsigned long long sum;

struct ph_kernel *ph_kernel_make(const char *name)
{
    struct ph_kernel *kernel = malloc(sizeof *kernel);
    sum += strlen(name);
    kernel->next = made;
    kernel->params = NULL;
    return made = kernel;
}

void ph_kernel_set_facts(struct ph_kernel *kernel, const struct ph_kernel_facts *facts)
{
    kernel->params = facts->params;
    for (unsigned i = 0; i < facts->param_count; i++)
        sum += facts->params[i].offset + facts->params[i].size;
}

void ph_die(const char *format, ...) { longjmp(refused, format != NULL); }

void fuzz_one(const unsigned char *bytes, size_t size)
{
    if (!setjmp(refused)) unload(load(bytes, size));
    while (made) {
        struct ph_kernel *next = made->next;
        free((void *)made->params);
        free(made);
        made = next;
    }
}
