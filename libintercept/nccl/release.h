/* nccl/release.h - which NCCL the job has, and what it asks of a communicator. */
#ifndef PH_NCCL_RELEASE_H
#define PH_NCCL_RELEASE_H
#include <stdbool.h>

int ph_nccl_release(void); /* NCCL_VERSION_CODE of the job's own NCCL; 0: it has loaded none */
const char *ph_nccl_error_text(int error);
/* Reads an ncclConfig_t (NULL: none), and names what it asks for and we do not simulate. False when
 * it is not one. */
bool ph_nccl_config(const void *config);
#endif
