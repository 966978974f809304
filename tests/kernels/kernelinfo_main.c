/* kernelinfo_main.c - prints what the C reader knows about each kernel named on stdin, for
 * comparison with Python. */
#include "backend.h"
#include "base/log.h"
#include "work/kernel_info.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct ph_backend ph_backend = {0};

void ph_warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

int main(void)
{
    static char line[1 << 16];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        const struct ph_kernel_info *info = ph_kernel_info(line);
        if (!info) {
            puts("unknown");
            continue;
        }
        printf("%u %u %u %u %u", info->param_bytes, info->max_threads, info->registers,
               info->static_shared_bytes, info->stack_bytes);
        const struct ph_kernel_param *params = ph_kernel_params(info);
        for (unsigned i = 0; i < info->param_count; i++)
            printf(" %u:%u", params[i].offset, params[i].size);
        putchar('\n');
    }
    return 0;
}
