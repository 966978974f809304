/* modules_main.c - loads each cubin of stdin (u32 bytes, then the bytes) and prints what is known
 * of its kernels, for tests/kernels/test_modules.py. */
#include "simulated/cuda/module.c"
#include "work/accesses.c"
#include "work/cubin.c"

#include <stdarg.h>

struct ph_kernel {
    char name[256];
};

struct ph_kernel *ph_kernel_make(const char *name)
{
    struct ph_kernel *kernel = calloc(1, sizeof *kernel);
    snprintf(kernel->name, sizeof kernel->name, "%s", name);
    return kernel;
}

void ph_kernel_set_facts(struct ph_kernel *kernel, const struct ph_kernel_facts *facts)
{
    printf(" %s:%u:%u:%u:", kernel->name, facts->max_threads, facts->registers,
           facts->static_shared);
    for (unsigned i = 0; i < facts->param_count; i++)
        printf("%u+%u,", facts->params[i].offset, facts->params[i].size);
}

void ph_die(const char *format, ...)
{
    (void)format;
    abort();
}

int main(void)
{
    uint32_t bytes;
    while (fread(&bytes, sizeof bytes, 1, stdin) == 1) {
        unsigned char *image = malloc(bytes);
        if (fread(image, 1, bytes, stdin) != bytes) return 1;
        struct module *module = load(image, bytes);
        puts(module->opaque ? " no cubin" : "");
        free(image);
    }
    return 0;
}
