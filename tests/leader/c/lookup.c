/* lookup.c - a library that calls dlsym and dlvsym. It covers the calls that the leader's library
 * must leave alone, and the one that it answers.
 *
 * Why it exists: dlsym's result depends on its caller, so a test needs callers of its own. This
 * file is compiled under several names. */
#define _GNU_SOURCE
#include <dlfcn.h>

/* The symbol `name` in the libraries after this one in load order. */
void *lookup_next(const char *name);
void *lookup_next(const char *name)
{
    /* volatile prevents a tail call, with which dlsym would see another caller */
    void *volatile found = dlsym(RTLD_NEXT, name);
    return found;
}

void *lookup_in(const char *library, const char *name);
void *lookup_in(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_LAZY);
    void *volatile found = handle ? dlsym(handle, name) : 0;
    return found;
}

/* The same by version. */
void *lookup_version_next(const char *name, const char *version);
void *lookup_version_next(const char *name, const char *version)
{
    void *volatile found = dlvsym(RTLD_NEXT, name, version);
    return found;
}

void *lookup_version_in(const char *library, const char *name, const char *version);
void *lookup_version_in(const char *library, const char *name, const char *version)
{
    void *handle = dlopen(library, RTLD_LAZY);
    void *volatile found = handle ? dlvsym(handle, name, version) : 0;
    return found;
}

int lookup_number(void);
int lookup_number(void) { return NUMBER; }
