/* base/lookup.h - symbols by name: ours, and the C library's dlsym. */
#ifndef PH_LOOKUP_H
#define PH_LOOKUP_H

typedef void *(*ph_dlsym_type)(void *, const char *);
typedef void *(*ph_dlvsym_type)(void *, const char *, const char *);
void *ph_own_symbol(const char *name); /* a function of this library; NULL: there is none */
ph_dlsym_type ph_real_dlsym(void);     /* the C library's dlsym */
ph_dlvsym_type ph_real_dlvsym(void);
#endif
