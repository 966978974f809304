/* portable_names.c - prints the portable form of each name that it reads, one per line. */
#include "../../libintercept/work/kernel_name.h"
#include <stdio.h>
#include <string.h>

int main(void)
{
    static char line[PH_KERNEL_NAME + 2], buffer[PH_KERNEL_NAME];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        puts(ph_kernel_name_portable(line, buffer, sizeof buffer));
    }
    return 0;
}
