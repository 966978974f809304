/* work/kernel_name.c - a kernel's name without the parts that change between builds of the same
 * source.
 *
 * Why it exists: nvcc names the anonymous namespace of a file
 * `_GLOBAL__N__<hash>_<length>_<file>_<hash>[_<number>]`, and the hashes differ between wheels of
 * one PyTorch release. Times measured with one wheel must be found with another. The portable name
 * keeps the file's name, and it is still a mangled name that demangles. */
#include "work/kernel_name.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char mark[] = "_GLOBAL__N__";
enum { MARK = sizeof mark - 1, HASH = 8 };

static const char *hash_end(const char *at)
{
    for (int i = 0; i < HASH; i++)
        if (!isxdigit((unsigned char)at[i])) return NULL;
    return at + HASH;
}

/* Whether the identifier of `length` bytes at `at` is such a name. If so, returns the position and
 * length of its file's name. */
static bool parse(const char *at, size_t length, const char **file, size_t *file_length)
{
    const char *end = at + length, *here = hash_end(at + MARK);
    size_t count = 0;
    if (!here || *here++ != '_' || !isdigit((unsigned char)*here)) return false;
    while (isdigit((unsigned char)*here) && count < 1000)
        count = count * 10 + (size_t)(*here++ - '0');
    if (*here++ != '_' || count == 0 || here >= end || (size_t)(end - here) < count + 1 + HASH)
        return false;
    *file = here;
    *file_length = count;
    here += count;
    if (*here != '_' || !(here = hash_end(here + 1))) return false;
    if (here == end) return true;
    if (*here++ != '_' || here == end) return false;
    while (here < end && isdigit((unsigned char)*here)) here++;
    return here == end;
}

const char *ph_kernel_name_portable(const char *name, char *buffer, size_t room)
{
    const char *from = name, *found = strstr(name, mark), *file;
    size_t used = 0, file_length, whole = strlen(name);
    if (!found || whole >= room) return name;
    for (; found; found = strstr(found + 1, mark)) {
        /* The identifier's length precedes it, perhaps directly after other digits. The shortest
         * number that fits is the length. */
        size_t length = 0, scale = 1;
        for (const char *digit = found;
             digit > from && isdigit((unsigned char)digit[-1]) && scale < 100000; scale *= 10) {
            length += (size_t)(*--digit - '0') * scale;
            if (*digit == '0' || length < MARK || length > (size_t)(name + whole - found) ||
                !parse(found, length, &file, &file_length))
                continue;
            memcpy(buffer + used, from, (size_t)(digit - from));
            used += (size_t)(digit - from);
            used += (size_t)snprintf(buffer + used, room - used, "%zu_GLOBAL__N_%.*s",
                                     file_length + 11, (int)file_length, file);
            from = found + length;
            break;
        }
    }
    memcpy(buffer + used, from, (size_t)(name + whole - from) + 1);
    return buffer;
}
