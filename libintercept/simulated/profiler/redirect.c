/* simulated/profiler/redirect.c - redirects a library's imports through its relocations.
 *
 * Why it exists: redirect.h. A library calls another one's functions through slots that the dynamic
 * linker fills in. Its dynamic section says where they are (ELF gABI, chapter 5). Slots may be in
 * memory that is read-only by now, so they are written as a debugger would. */
#define _GNU_SOURCE /* dlinfo */
#include "simulated/profiler/redirect.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

struct relocations {
    const ElfW(Rela) * first;
    size_t count;
};

static uintptr_t entry(const struct link_map *map, ElfW(Sxword) tag)
{
    for (const ElfW(Dyn) *at = map->l_ld; at->d_tag != DT_NULL; at++)
        if (at->d_tag == tag) return at->d_un.d_ptr;
    return 0;
}

static struct relocations table(const struct link_map *map, ElfW(Sxword) tag, ElfW(Sxword) bytes)
{
    return (struct relocations){(const ElfW(Rela) *)entry(map, tag),
                                entry(map, bytes) / sizeof(ElfW(Rela))};
}

static uintptr_t slot_in(const struct link_map *map, struct relocations in, const char *function)
{
    const ElfW(Sym) *symbols = (const ElfW(Sym) *)entry(map, DT_SYMTAB);
    const char *names = (const char *)entry(map, DT_STRTAB);
    for (size_t i = 0; in.first && i < in.count; i++) {
        uint64_t type = ELF64_R_TYPE(in.first[i].r_info);
        if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
        const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(in.first[i].r_info)];
        if (strcmp(names + symbol->st_name, function) == 0)
            return map->l_addr + in.first[i].r_offset;
    }
    return 0;
}

static bool write_slot(uintptr_t slot, void *to)
{
    int memory = open("/proc/self/mem", O_WRONLY | O_CLOEXEC);
    if (memory < 0) return false;
    ssize_t written = pwrite(memory, &to, sizeof to, (off_t)slot);
    close(memory);
    return written == sizeof to;
}

bool ph_redirect(const char *library, const char *function, void *to, void **real)
{
    struct link_map *map;
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return false;
    bool done = dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0;
    if (done) {
        uintptr_t slot = slot_in(map, table(map, DT_JMPREL, DT_PLTRELSZ), function);
        if (!slot) slot = slot_in(map, table(map, DT_RELA, DT_RELASZ), function);
        *real = dlsym(handle, function);
        done = slot && *real && write_slot(slot, to);
    }
    dlclose(handle);
    return done;
}
