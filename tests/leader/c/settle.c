/* settle.c - the few functions of the interceptor that samples.c and host_costs.c need, so that
 * they can be tested without a GPU or a hub.
 *
 * Why it exists: which sample a set of activity records gives is pure arithmetic.
 * tests/leader/test_samples.py compares it with an obviously right version on random records.
 * Messages are kept instead of sent. */
#include "base/log.h"
#include "leader/measure/measure.h"
#include "link/connection.h"
#include "time/operators.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ph_rank_stats page;
static struct ph_pack sent;
static struct ph_measured *measured[256];

struct ph_rank_stats *ph_stats(void) { return &page; }
void ph_pack_launch_context(struct ph_pack *pack, const struct ph_signature *signature)
{
    (void)signature, ph_pack_nil(pack);
}
void ph_warn(const char *format, ...) { (void)format; }

void ph_die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    abort();
}

void ph_send(enum ph_message type, const struct ph_pack *body, uint32_t fields)
{
    ph_pack_array(&sent, fields + 1);
    ph_pack_uint(&sent, type);
    ph_pack_raw(&sent, body->data, body->length);
}

/* A signature [kind, [number]], kept under its number. */
struct ph_measured *settle_signature(unsigned kind, unsigned number)
{
    struct ph_signature signature = {0};
    ph_signature_begin(&signature, kind, 1);
    ph_pack_uint(&signature.fields, number);
    ph_signature_end(&signature);
    measured[number] = ph_measured_find(&signature);
    ph_signature_free(&signature);
    return measured[number];
}

size_t settle_take_sent(unsigned char *bytes, size_t most)
{
    size_t length = sent.length < most ? sent.length : most;
    memcpy(bytes, sent.data, length);
    sent.length = 0;
    return length;
}

size_t settle_pack_host(unsigned char *bytes, size_t most)
{
    struct ph_pack map = {0};
    ph_pack_map(&map, 2);
    ph_samples_pack_host(&map);
    size_t length = map.length < most ? map.length : most;
    memcpy(bytes, map.data, length);
    ph_pack_free(&map);
    return length;
}
