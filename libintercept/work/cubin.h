/* work/cubin.h - GPU code loaded at run time: an ELF file in memory.
 *
 * Rule: none of its numbers is trusted. Every piece is found within the image, and tables are
 * copied entry by entry, because they may lie at any address. */
#ifndef PH_WORK_CUBIN_H
#define PH_WORK_CUBIN_H
#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ph_cubin {
    const unsigned char *data;
    size_t bytes;
    Elf64_Ehdr header;
};

/* false: not a cubin */
bool ph_cubin_open(struct ph_cubin *image, const void *data, size_t bytes);
/* Where an image in memory ends. Its caller does not say; the tables of the ELF file do. 0: it is
 * none, or too large for a cubin. */
size_t ph_cubin_extent(const void *image);
/* An entry of the table of sections; empty beyond its end. */
Elf64_Shdr ph_cubin_section(const struct ph_cubin *image, uint64_t index);
/* NULL: not within the image */
const void *ph_cubin_contents(const struct ph_cubin *image, const Elf64_Shdr *section);
/* a text of the section of strings `section`; "" if there is none at `offset` */
const char *ph_cubin_text(const struct ph_cubin *image, uint64_t section, uint64_t offset);
/* the kernel whose machine code the section holds; NULL: it holds none */
const char *ph_cubin_code_of(const struct ph_cubin *image, const Elf64_Shdr *section);
/* the compute capability that the code was compiled for: 90 is 9.0 */
unsigned ph_cubin_capability(const struct ph_cubin *image);
#endif
