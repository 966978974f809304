/* base/msgpack.c - the part of msgpack that the wire protocol uses, in its shortest (canonical)
 * form.
 *
 * Why it exists: signatures are hashed over these bytes in C and in Python, so both must encode
 * them identically. */
#include "base/msgpack.h"
#include "base/log.h"
#include <stdlib.h>
#include <string.h>

static unsigned char *grow(struct ph_pack *pack, size_t more)
{
    if (pack->length + more > pack->capacity) {
        size_t capacity = pack->capacity ? pack->capacity * 2 : 256;
        while (capacity < pack->length + more) capacity *= 2;
        unsigned char *data = realloc(pack->data, capacity);
        if (!data) ph_die("out of host memory while making a message of %zu bytes", capacity);
        pack->data = data;
        pack->capacity = capacity;
    }
    unsigned char *at = pack->data + pack->length;
    pack->length += more;
    return at;
}

void ph_pack_free(struct ph_pack *pack)
{
    free(pack->data);
    *pack = (struct ph_pack){0};
}

static void put(struct ph_pack *pack, unsigned char tag, uint64_t value, int bytes)
{
    unsigned char *at = grow(pack, (size_t)bytes + 1);
    *at++ = tag;
    for (int i = bytes - 1; i >= 0; i--) *at++ = (unsigned char)(value >> (8 * i));
}

void ph_pack_nil(struct ph_pack *pack) { *grow(pack, 1) = 0xc0; }

void ph_pack_uint(struct ph_pack *pack, uint64_t value)
{
    if (value < 0x80)
        *grow(pack, 1) = (unsigned char)value;
    else if (value <= 0xff)
        put(pack, 0xcc, value, 1);
    else if (value <= 0xffff)
        put(pack, 0xcd, value, 2);
    else if (value <= 0xffffffff)
        put(pack, 0xce, value, 4);
    else
        put(pack, 0xcf, value, 8);
}

void ph_pack_int(struct ph_pack *pack, int64_t value)
{
    if (value >= 0)
        ph_pack_uint(pack, (uint64_t)value);
    else if (value >= -32)
        *grow(pack, 1) = (unsigned char)value;
    else if (value >= INT8_MIN)
        put(pack, 0xd0, (uint64_t)value, 1);
    else if (value >= INT16_MIN)
        put(pack, 0xd1, (uint64_t)value, 2);
    else if (value >= INT32_MIN)
        put(pack, 0xd2, (uint64_t)value, 4);
    else
        put(pack, 0xd3, (uint64_t)value, 8);
}

void ph_pack_double(struct ph_pack *pack, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    put(pack, 0xcb, bits, 8);
}

void ph_pack_str(struct ph_pack *pack, const char *text)
{
    size_t n = strlen(text);
    if (n < 32)
        *grow(pack, 1) = (unsigned char)(0xa0 | n);
    else if (n <= 0xff)
        put(pack, 0xd9, n, 1);
    else if (n <= 0xffff)
        put(pack, 0xda, n, 2);
    else
        put(pack, 0xdb, n, 4);
    memcpy(grow(pack, n), text, n);
}

void ph_pack_bin(struct ph_pack *pack, const void *bytes, size_t n)
{
    if (n <= 0xff)
        put(pack, 0xc4, n, 1);
    else if (n <= 0xffff)
        put(pack, 0xc5, n, 2);
    else
        put(pack, 0xc6, n, 4);
    if (n) memcpy(grow(pack, n), bytes, n);
}

void ph_pack_array(struct ph_pack *pack, uint32_t count)
{
    if (count < 16)
        *grow(pack, 1) = (unsigned char)(0x90 | count);
    else if (count <= 0xffff)
        put(pack, 0xdc, count, 2);
    else
        put(pack, 0xdd, count, 4);
}

void ph_pack_map(struct ph_pack *pack, uint32_t count)
{
    if (count < 16)
        *grow(pack, 1) = (unsigned char)(0x80 | count);
    else
        put(pack, 0xde, count, 2);
}

void ph_pack_raw(struct ph_pack *pack, const void *bytes, size_t n)
{
    if (n) memcpy(grow(pack, n), bytes, n);
}

/* ---- reading replies ---- */
static uint64_t take(struct ph_reply *reply, int bytes)
{
    uint64_t value = 0;
    if (reply->at + (size_t)bytes > reply->length) {
        reply->bad = true;
        return 0;
    }
    for (int i = 0; i < bytes; i++) value = value << 8 | reply->data[reply->at++];
    return value;
}

int64_t ph_read_int(struct ph_reply *reply)
{
    unsigned tag = (unsigned)take(reply, 1);
    if (tag < 0x80) return tag;
    if (tag >= 0xe0) return (int8_t)tag;
    switch (tag) {
    case 0xcc: return (int64_t)take(reply, 1);
    case 0xcd: return (int64_t)take(reply, 2);
    case 0xce: return (int64_t)take(reply, 4);
    case 0xcf: return (int64_t)take(reply, 8);
    case 0xd0: return (int8_t)take(reply, 1);
    case 0xd1: return (int16_t)take(reply, 2);
    case 0xd2: return (int32_t)take(reply, 4);
    case 0xd3: return (int64_t)take(reply, 8);
    case 0xc2: return 0;
    case 0xc3: return 1;
    default: reply->bad = true; return 0;
    }
}

uint32_t ph_read_array(struct ph_reply *reply)
{
    unsigned tag = (unsigned)take(reply, 1);
    if ((tag & 0xf0) == 0x90) return tag & 15;
    if (tag == 0xdc) return (uint32_t)take(reply, 2);
    if (tag == 0xdd) return (uint32_t)take(reply, 4);
    reply->bad = true;
    return 0;
}

/* A str or bin. NULL with length 0 for nil. */
const unsigned char *ph_read_bytes(struct ph_reply *reply, size_t *length)
{
    unsigned tag = (unsigned)take(reply, 1);
    size_t n = 0;
    *length = 0;
    if ((tag & 0xe0) == 0xa0)
        n = tag & 31;
    else if (tag == 0xc4 || tag == 0xd9)
        n = take(reply, 1);
    else if (tag == 0xc5 || tag == 0xda)
        n = take(reply, 2);
    else if (tag == 0xc6 || tag == 0xdb)
        n = take(reply, 4);
    else {
        reply->bad |= tag != 0xc0;
        return NULL;
    }
    if (reply->at + n > reply->length) {
        reply->bad = true;
        return NULL;
    }
    *length = n;
    reply->at += n;
    return reply->data + reply->at - n;
}
