/* samples.c - turns activity records into durations of signatures.
 *
 * Why it exists: a library call may launch several kernels, kernels of several streams overlap, and
 * the first run of anything is slower than the rest.
 *
 * A call's duration is the time of its kernels and fills plus the gaps between them, minus the part
 * in which its first kernel overlaps earlier work in its stream. A gap counts at most
 * LONGEST_GAP_NS: longer ones come from the host's slowness in issuing, which a full queue hides. A
 * sample is dropped when work on another stream, including the simulated NCCL's own copies,
 * overlaps more than a hundredth of it. A signature's first sample is sent at once if a rank waits
 * for it, as one MEASURED entry with one duration. Later samples are sent in batches; a first
 * sample that no rank waited for is sent only if none followed. Rule: the caller (measure.c) holds
 * its lock. */
#include "base/log.h"
#include "link/connection.h"
#include "time/operators.h"
#include "work/signature.h"
#include "leader/measure/measure.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHAINS = 4096,
    LONGEST_GAP_NS = 2000,
    OVERLAP_PARTS = 100,
    ENTRIES = 256,
    IDLE_NS = 20000,
    QUEUED_NS = 10000,
    TO_COLLECTION_NS = 200000
};

static struct ph_measured *chain[CHAINS];
static struct ph_distribution latency, gap;
static uint64_t kept;
static struct {
    uint64_t signatures, sampled, overlapped, without_work, failed, lost, unclaimed, dropped,
        implausible, sent, messages;
} count;

/* ---- signatures ---- */
struct ph_measured *ph_measured_find(const struct ph_signature *signature)
{
    struct ph_measured **link = &chain[signature->key % CHAINS];
    while (*link && (*link)->signature.key != signature->key) link = &(*link)->next;
    if (*link) return *link;
    struct ph_measured *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        ph_die("out of host memory for the signatures of %llu calls",
               (unsigned long long)count.signatures);
    ph_signature_copy(&fresh->signature, signature);
    ph_pack_launch_context(&fresh->context, signature);
    count.signatures++;
    return *link = fresh;
}

/* ---- records to calls ---- */
static int by_correlation(const void *left, const void *right)
{
    uint32_t a = ((const struct ph_external *)left)->correlation,
             b = ((const struct ph_external *)right)->correlation;
    return (a > b) - (a < b);
}

static int by_start(const void *left, const void *right)
{
    const struct ph_activity *a = left, *b = right;
    return a->start != b->start ? (a->start > b->start) - (a->start < b->start)
                                : (a->end > b->end) - (a->end < b->end);
}

static int by_token(const void *left, const void *right)
{
    uint64_t a = (*(struct ph_call_slot *const *)left)->token,
             b = (*(struct ph_call_slot *const *)right)->token;
    return (a > b) - (a < b);
}

static uint64_t id_of(const struct ph_records *records, uint32_t correlation)
{
    struct ph_external wanted = {0, correlation};
    const struct ph_external *found =
        records->externals
            ? bsearch(&wanted, records->external, records->externals, sizeof wanted, by_correlation)
            : NULL;
    return found ? found->id : 0;
}

static struct ph_call_slot *slot_of(struct ph_call_slot **sorted, size_t count_of, uint64_t token)
{
    struct ph_call_slot wanted = {.token = token}, *pointer = &wanted;
    struct ph_call_slot **found = bsearch(&pointer, sorted, count_of, sizeof *sorted, by_token);
    return found ? *found : NULL;
}

static void add_activity(struct ph_call_slot *slot, const struct ph_activity *activity)
{
    if (slot->activities++ == 0) {
        slot->first_start = activity->start;
        slot->busy_ns = activity->end - activity->start;
        slot->last_end = activity->end;
        slot->stream = activity->stream;
        return;
    }
    /* In the order of their starts. A start before the last end is an overlap within the call, and
     * counts once. */
    uint64_t between = activity->start > slot->last_end ? activity->start - slot->last_end : 0;
    uint64_t from = activity->start > slot->last_end ? activity->start : slot->last_end;
    slot->busy_ns += (between < LONGEST_GAP_NS ? between : LONGEST_GAP_NS) +
                     (activity->end > from ? activity->end - from : 0);
    if (activity->end > slot->last_end) slot->last_end = activity->end;
}

static bool is_kernel(const struct ph_call_slot *slot)
{
    return slot->what->signature.kind == PH_SIGNATURE_KERNEL && slot->activities == 1;
}

/* Latency is from a launch on a long idle stream to the kernel's start. The gap is between a kernel
 * and the next, if that was launched well before the first ended. Signatures that were waited for
 * count for neither, because the GPU was idle around them. */
static void learn_spacing(const struct ph_call_slot *slot, uint64_t idle_since, bool known)
{
    if (!is_kernel(slot) || slot->wanted || !known) return;
    if (idle_since + IDLE_NS < slot->called_ns && slot->first_start > slot->called_ns &&
        slot->first_start - slot->called_ns < TO_COLLECTION_NS)
        ph_distribution_add(&latency, slot->first_start - slot->called_ns);
    if (slot->returned_ns + QUEUED_NS < idle_since && slot->first_start >= idle_since &&
        slot->first_start - idle_since < TO_COLLECTION_NS)
        ph_distribution_add(&gap, slot->first_start - idle_since);
}

static void keep_sample(struct ph_call_slot *slot)
{
    struct ph_measured *what = slot->what;
    uint64_t duration = slot->busy_ns ? slot->busy_ns : 1;
    if (slot->overlap_ns * OVERLAP_PARTS > slot->last_end - slot->first_start && !slot->wanted) {
        count.overlapped++;
        return;
    }
    count.sampled++;
    if (!what->first_ns) {
        what->first_ns = duration;
        return;
    }
    if (what->laters == what->room) {
        what->room = what->room ? what->room * 2 : 8;
        what->later = realloc(what->later, what->room * sizeof *what->later);
        if (!what->later) ph_die("out of host memory for %u durations", what->room);
    }
    what->later[what->laters++] = duration;
    kept++;
}

/* With programmatic dependent launch, a kernel may start before the previous one in its stream has
 * ended, and wait for it inside. That wait is not part of the time that it adds to the stream. */
static void clip_start(struct ph_call_slot *slot, const struct ph_activity *activity,
                       uint64_t stream_busy_until)
{
    uint64_t until = stream_busy_until < activity->end ? stream_busy_until : activity->end;
    slot->clipped = true;
    if (until > activity->start) slot->busy_ns -= until - activity->start;
}

/* How long work of other streams overlapped each call. Few activities overlap at any moment, so
 * looking forward from each is short. */
static void find_overlaps(const struct ph_activity *activity, struct ph_call_slot **owner,
                          size_t activities)
{
    for (size_t i = 0; i < activities; i++)
        for (size_t j = i + 1; j < activities && activity[j].start < activity[i].end; j++) {
            if (activity[j].stream == activity[i].stream) continue;
            uint64_t end = activity[j].end < activity[i].end ? activity[j].end : activity[i].end;
            if (owner[i]) owner[i]->overlap_ns += end - activity[j].start;
            if (owner[j]) owner[j]->overlap_ns += end - activity[j].start;
        }
}

enum { STREAMS = 256 };
struct stream_end {
    uint32_t stream;
    uint64_t end;
    bool any;
};

/* two streams that share an element only lose samples of latency and gap */
static struct stream_end *stream_end(struct stream_end *ends, uint32_t stream)
{
    struct stream_end *at = &ends[stream % STREAMS];
    if (at->any && at->stream != stream) at->any = false;
    at->stream = stream;
    return at;
}

/* A call that a rank waits for has no work, and later work belongs to no call: its external id is
 * missing. */
static bool unclaimed(const struct ph_records *records, struct ph_call_slot **sorted, size_t open)
{
    for (size_t i = 0; i < open; i++)
        for (size_t j = 0; j < records->activities && sorted[i]->wanted && sorted[i]->ended &&
                           !sorted[i]->failed && !sorted[i]->activities;
             j++)
            if (records->activity[j].start >= sorted[i]->called_ns &&
                !id_of(records, records->activity[j].correlation))
                return true;
    return false;
}

/* Sorts what arrived, finds the call of each activity and adds up each call's activities. */
static void join_records(struct ph_records *records, struct ph_call_slot **sorted, size_t open,
                         struct ph_call_slot **owner)
{
    if (records->externals)
        qsort(records->external, records->externals, sizeof *records->external, by_correlation);
    if (records->activities)
        qsort(records->activity, records->activities, sizeof *records->activity, by_start);
    for (size_t i = 0; i < records->activities; i++) {
        uint64_t id = id_of(records, records->activity[i].correlation);
        owner[i] = slot_of(sorted, open, id);
        if (owner[i] && owner[i]->ended) add_activity(owner[i], &records->activity[i]);
        if (!id) count.unclaimed++;
    }
}

/* What each call's first activity tells about the work before it in its stream. */
static void look_at_streams(const struct ph_records *records, struct ph_call_slot **owner)
{
    struct stream_end ends[STREAMS] = {0};
    for (size_t i = 0; i < records->activities; i++) {
        const struct ph_activity *activity = &records->activity[i];
        struct stream_end *end = stream_end(ends, activity->stream);
        if (owner[i] && owner[i]->ended && activity->start == owner[i]->first_start) {
            learn_spacing(owner[i], end->end, end->any);
            if (end->any && !owner[i]->clipped) clip_start(owner[i], activity, end->end);
        }
        if (!end->any || activity->end > end->end) end->end = activity->end;
        end->any = true;
    }
}

/* Whether nothing more is expected of a call. `idle`: no work was unfinished. */
static bool is_complete(const struct ph_call_slot *slot, bool idle)
{
    return slot->ended && (slot->activities || slot->failed || idle);
}

static void finish(struct ph_call_slot *slot, bool missing)
{
    if (slot->failed)
        count.failed++;
    else if (slot->activities)
        keep_sample(slot);
    else if (count.without_work++ == 0 && !missing)
        ph_warn("a call that was observed did no work on the GPU (signature of kind %u): no "
                "duration is recorded for such calls",
                slot->what->signature.kind);
}

/* Records of calls that are not complete stay for the next time. */
static void keep_records(struct ph_records *records, struct ph_call_slot **sorted, size_t open,
                         struct ph_call_slot **owner, bool idle)
{
    size_t activities = 0, externals = 0;
    for (size_t i = 0; i < records->activities; i++)
        if (owner[i] && !owner[i]->ended) records->activity[activities++] = records->activity[i];
    for (size_t i = 0; i < records->externals; i++) {
        struct ph_call_slot *slot = slot_of(sorted, open, records->external[i].id);
        if (slot && !is_complete(slot, idle)) records->external[externals++] = records->external[i];
    }
    records->activities = activities;
    records->externals = externals;
}

static void count_unusable(struct ph_records *records)
{
    count.dropped += records->dropped;
    count.implausible += records->implausible;
    if (records->dropped)
        ph_warn("CUPTI dropped activity records for lack of room: some launches give no durations");
    if (records->implausible)
        ph_warn(
            "CUPTI gave activity records with impossible times: those launches give no durations");
    records->dropped = records->implausible = 0;
}

bool ph_samples_settle(struct ph_records *records, struct ph_call_slot *slots, size_t slot_count,
                       bool idle)
{
    size_t open = 0;
    struct ph_call_slot **sorted = malloc((slot_count + 1) * sizeof *sorted),
                        **owner = malloc((records->activities + 1) * sizeof *owner);
    if (!sorted || !owner)
        ph_die("out of host memory for the records of %zu calls", records->activities);
    for (size_t i = 0; i < slot_count; i++)
        if (slots[i].token) sorted[open++] = &slots[i];
    qsort(sorted, open, sizeof *sorted, by_token);
    join_records(records, sorted, open, owner);
    bool missing = unclaimed(records, sorted, open);
    find_overlaps(records->activity, owner, records->activities);
    look_at_streams(records, owner);
    for (size_t i = 0; i < open; i++)
        if (is_complete(sorted[i], idle)) finish(sorted[i], missing);
    keep_records(records, sorted, open, owner, idle);
    count_unusable(records);
    for (size_t i = 0; i < open; i++)
        if (is_complete(sorted[i], idle)) *sorted[i] = (struct ph_call_slot){0};
    free(sorted), free(owner);
    return missing;
}

/* ---- messages ---- */
static void flush_message(struct ph_pack *entries, uint32_t *used)
{
    struct ph_pack body = {0};
    if (*used) {
        ph_pack_uint(&body, atomic_load_explicit(&ph_stats()->clock_ns, memory_order_relaxed));
        ph_pack_array(&body, *used);
        ph_pack_raw(&body, entries->data, entries->length);
        ph_send(PH_MESSAGE_MEASURED, &body, 2);
        count.messages++;
    }
    ph_pack_free(&body);
    entries->length = 0;
    *used = 0;
}

static void pack_entry(struct ph_pack *entries, const struct ph_measured *what, const uint64_t *ns,
                       uint32_t samples)
{
    ph_pack_array(entries, 4);
    ph_pack_uint(entries, what->signature.kind);
    ph_pack_array(entries, what->signature.count);
    ph_pack_raw(entries, what->signature.fields.data, what->signature.fields.length);
    ph_pack_raw(entries, what->context.data, what->context.length);
    ph_pack_array(entries, samples);
    for (uint32_t i = 0; i < samples; i++) ph_pack_uint(entries, ns[i]);
    count.sent += samples;
}

void ph_samples_send_first(struct ph_measured *what)
{
    struct ph_pack entries = {0};
    uint32_t used = 1;
    pack_entry(&entries, what, &what->first_ns, 1);
    what->sent = true;
    flush_message(&entries, &used);
    ph_pack_free(&entries);
}

void ph_samples_send(bool all)
{
    struct ph_pack entries = {0};
    uint32_t used = 0;
    for (size_t i = 0; i < CHAINS; i++)
        for (struct ph_measured *what = chain[i]; what; what = what->next) {
            if (what->laters)
                pack_entry(&entries, what, what->later, what->laters), used++;
            else if (all && what->first_ns && !what->sent)
                pack_entry(&entries, what, &what->first_ns, 1), used++;
            else
                continue;
            what->laters = 0;
            what->sent = true;
            if (used == ENTRIES) flush_message(&entries, &used);
        }
    flush_message(&entries, &used);
    ph_pack_free(&entries);
    kept = 0;
}

uint64_t ph_samples_kept(void) { return kept; }

static void pack_distribution(struct ph_pack *map, const char *name,
                              const struct ph_distribution *distribution)
{
    uint64_t mean, median;
    ph_distribution_read(distribution, &mean, &median);
    ph_pack_str(map, name);
    ph_pack_array(map, 3);
    ph_pack_uint(map, distribution->count);
    ph_pack_uint(map, mean);
    ph_pack_uint(map, median);
}

void ph_samples_pack_host(struct ph_pack *map)
{
    pack_distribution(map, "latency", &latency);
    pack_distribution(map, "gap", &gap);
}

void ph_samples_count_lost(uint64_t calls)
{
    if (!calls) return;
    count.lost += calls;
    ph_warn("records of observed launches never came: some launches give no durations");
}

void ph_samples_debug(void)
{
    uint64_t latency_mean, latency_median, gap_mean, gap_median;
    ph_distribution_read(&latency, &latency_mean, &latency_median);
    ph_distribution_read(&gap, &gap_mean, &gap_median);
#define N(field) (unsigned long long)count.field
    fprintf(stderr,
            "phantora-ns: leading: %llu signatures, %llu samples, %llu sent in %llu messages; "
            "dropped: %llu overlapped, %llu without work, %llu failed, "
            "%llu lost; work without a call: %llu; records dropped %llu, implausible %llu; latency "
            "%llu x %llu ns, gap %llu x %llu ns\n",
            N(signatures), N(sampled), N(sent), N(messages), N(overlapped), N(without_work),
            N(failed), N(lost), N(unclaimed), N(dropped), N(implausible),
            (unsigned long long)latency.count, (unsigned long long)latency_median,
            (unsigned long long)gap.count, (unsigned long long)gap_median);
#undef N
}

void ph_samples_reset(void)
{
    /* the parent's store: its memory is shared until it is written, and never read again */
    memset(chain, 0, sizeof chain);
    memset(&latency, 0, sizeof latency);
    memset(&gap, 0, sizeof gap);
    memset(&count, 0, sizeof count);
    kept = 0;
}
