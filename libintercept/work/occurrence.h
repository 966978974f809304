/* work/occurrence.h - which question a rank asks of its GPU's values, and how often it has asked it
 * (work/occurrence.c). */
#ifndef PH_OCCURRENCE_H
#define PH_OCCURRENCE_H
#include <stddef.h>
#include <stdint.h>

enum { PH_QUESTION = 512 };
uint64_t ph_question_hash(const char *question);
uint32_t ph_occasion(uint64_t hash); /* for the how manieth time this process asks it, from 0 */
/* of the host that reads so many bytes of device memory */
void ph_read_question(char text[PH_QUESTION], size_t bytes);
#endif
