/* kernelinfo.c - the file of facts about kernels, a cache that may be damaged. */
#include "../../../libintercept/work/kernel_info.c"
#include "fuzz.h"

const char *ph_env(const char *name) { return (void)name, NULL; }
void ph_warn(const char *format, ...) { (void)format; }

void fuzz_one(const unsigned char *bytes, size_t size)
{
    static const char *const names[] = {"a", "_Z1kPf", "b", "", "_ZN2at6nativeE"};
    unsigned char *aligned = malloc(size + !size); /* as a mapping is */
    memcpy(aligned, bytes, size);
    pthread_once(&once, map_file); /* without a path: no file */
    file = NULL;
    if (header_is_sound((const void *)aligned, size)) {
        header = (const void *)aligned;
        file = aligned;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct ph_kernel_info *info = ph_kernel_info(names[i]);
        volatile uint64_t sum = 0;
        if (!info) continue;
        const struct ph_kernel_param *params = ph_kernel_params(info);
        for (unsigned j = 0; j < info->param_count; j++) sum += params[j].size;
    }
    free(aligned);
}
