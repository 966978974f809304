/* fuzz.h - what each parser under test offers to guide.c. */
#ifndef FUZZ_H
#define FUZZ_H
#include <stddef.h>
#include <stdint.h>

void fuzz_one(const unsigned char *bytes, size_t size);
#endif
