/* base/msgpack.h - the part of msgpack that the wire protocol uses. The encoding is canonical: each
 * integer has its shortest form. */
#ifndef PH_MSGPACK_H
#define PH_MSGPACK_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- writing ---- */
struct ph_pack {
    unsigned char *data;
    size_t length, capacity;
};
void ph_pack_free(struct ph_pack *pack);
void ph_pack_nil(struct ph_pack *pack);
void ph_pack_int(struct ph_pack *pack, int64_t value);
void ph_pack_uint(struct ph_pack *pack, uint64_t value);
void ph_pack_double(struct ph_pack *pack, double value);
void ph_pack_str(struct ph_pack *pack, const char *text);
void ph_pack_bin(struct ph_pack *pack, const void *bytes, size_t length);
void ph_pack_array(struct ph_pack *pack, uint32_t count);
void ph_pack_map(struct ph_pack *pack, uint32_t count);
/* already packed values */
void ph_pack_raw(struct ph_pack *pack, const void *bytes, size_t length);

/* ---- reading ---- */
struct ph_reply { /* a received frame with a read cursor */
    unsigned char *data;
    size_t length, at;
    bool bad;
    void *owner; /* freed by ph_reply_free */
};
int64_t ph_read_int(struct ph_reply *reply);
uint32_t ph_read_array(struct ph_reply *reply);
/* a str or bin; NULL with length 0 for nil */
const unsigned char *ph_read_bytes(struct ph_reply *reply, size_t *length);
#endif
