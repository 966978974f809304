/* base/map_file.h - a file of the run directory, mapped.
 *
 * Why it exists: a limit or a failing disk must not be taken for a file of another version. */
#ifndef PH_MAP_FILE_H
#define PH_MAP_FILE_H
#include <stdbool.h>
#include <stddef.h>

/* Maps the whole file RUN_DIR/`name`, shared with other processes, and writes its path into `path`.
 * Ends the process with one line when it cannot be opened or mapped. An empty file gives NULL with
 * 0 bytes. */
void *ph_map_file(const char *name, bool writable, char path[512], size_t *bytes);

#endif
