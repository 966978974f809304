/* work/cubin.c - reads the tables of a cubin. */
#include "work/cubin.h"
#include <string.h>

static const void *piece(const struct ph_cubin *image, uint64_t offset, uint64_t bytes)
{
    return offset <= image->bytes && bytes <= image->bytes - offset ? image->data + offset : NULL;
}

const void *ph_cubin_contents(const struct ph_cubin *image, const Elf64_Shdr *section)
{
    return section->sh_type == SHT_NOBITS ? NULL
                                          : piece(image, section->sh_offset, section->sh_size);
}

Elf64_Shdr ph_cubin_section(const struct ph_cubin *image, uint64_t index)
{
    Elf64_Shdr section = {0};
    uint64_t offset;
    if (index < image->header.e_shnum &&
        !__builtin_add_overflow(image->header.e_shoff, index * sizeof section, &offset)) {
        const void *at = piece(image, offset, sizeof section);
        if (at) memcpy(&section, at, sizeof section);
    }
    return section;
}

const char *ph_cubin_text(const struct ph_cubin *image, uint64_t section, uint64_t offset)
{
    Elf64_Shdr strings = ph_cubin_section(image, section);
    const char *text = ph_cubin_contents(image, &strings);
    if (!text || offset >= strings.sh_size) return "";
    return memchr(text + offset, 0, strings.sh_size - offset) ? text + offset : "";
}

const char *ph_cubin_code_of(const struct ph_cubin *image, const Elf64_Shdr *section)
{
    static const char code[] = ".text.";
    const char *name = ph_cubin_text(image, image->header.e_shstrndx, section->sh_name);
    return strncmp(name, code, sizeof code - 1) == 0 ? name + sizeof code - 1 : NULL;
}

unsigned ph_cubin_capability(const struct ph_cubin *image)
{
    enum { NEWER = 8 }; /* CUDA 12.8 for Blackwell, and 13 */
    unsigned shift = image->header.e_ident[EI_ABIVERSION] >= NEWER ? 8 : 0;
    return image->header.e_flags >> shift & 0xff;
}

bool ph_cubin_open(struct ph_cubin *image, const void *data, size_t bytes)
{
    *image = (struct ph_cubin){.data = data, .bytes = bytes};
    if (bytes < sizeof image->header || memcmp(data, ELFMAG, SELFMAG)) return false;
    memcpy(&image->header, data, sizeof image->header);
    return image->header.e_shentsize == sizeof(Elf64_Shdr) && image->header.e_shnum &&
           ph_cubin_section(image, image->header.e_shstrndx).sh_size &&
           piece(image, image->header.e_shoff, image->header.e_shnum * sizeof(Elf64_Shdr));
}

size_t ph_cubin_extent(const void *image)
{
    enum { MOST = 1 << 30 };
    Elf64_Ehdr header;
    if (memcmp(image, ELFMAG, SELFMAG) != 0) return 0;
    memcpy(&header, image, sizeof header);
    uint64_t end = header.e_shnum * sizeof(Elf64_Shdr),
             segments_end = header.e_phnum * sizeof(Elf64_Phdr);
    if (header.e_shoff > MOST || header.e_phoff > MOST) return 0;
    end += header.e_shoff, segments_end += header.e_phoff;
    for (unsigned i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, (const char *)image + header.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_type == SHT_NOBITS) continue;
        if (section.sh_offset > MOST || section.sh_size > MOST) return 0;
        if (section.sh_offset + section.sh_size > end) end = section.sh_offset + section.sh_size;
    }
    return end > segments_end ? end : segments_end;
}
