/* Sums gradients in the kernel: the XDP program of a cluster.
 *
 * A contribution is a UDP packet of the form that wire.rs states. It is checked, its 16-bit values are added to those of
 * its slot under the slot's lock, and it is dropped. The contribution that completes a slot becomes the result: it is
 * signed again and sent to all interfaces in the map `ports`, without any wake-up of user space. A contribution to a
 * complete slot means that its sender has not received the result, which is sent back to it alone.
 *
 * A slot also keeps how long each contribution was, as it was added, and the result says it: so all ranks learn from the
 * same bytes who has contributed something else than it has announced. What is contributed by a rank that was muted for
 * it counts as zeros.
 *
 * slots.rs is the same in Rust, verdict for verdict; a test compares the two on random packets. Whoever changes one
 * changes both, and runs `.ci/xdp-object --write`. Nothing is included, so the object depends on the compiler alone.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define UINT(name, value) int (*name)[value]

struct xdp_md { u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex; };
struct bpf_spin_lock { u32 value; };

enum { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };
enum { MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6, MAP_DEVMAP = 14 };
#define TO_ALL_PORTS (1ULL << 3)

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*redirect_map)(void *map, u64 key, u64 flags) = (void *)51;
static long (*spin_lock)(struct bpf_spin_lock *lock) = (void *)93;
static long (*spin_unlock)(struct bpf_spin_lock *lock) = (void *)94;

/* As in wire.rs. */
#define MAGIC 0x31475053u
#define VALUES 672
#define WORDS (VALUES / 4)
#define SLOTS 128
#define RESULT 255
#define MOST_WORKERS 16
/* The lowest bits of a contribution's sum of squares, which are left out: 672 squares of 16 bits need 40. */
#define SQUARES_SHIFT 8

struct header {
    u32 magic; u16 job; u8 worker, workers; u32 round, slot, chunk, values; u64 tag, contributors; u32 squares[MOST_WORKERS];
};
#define FRAME_HEAD 42
#define PAYLOAD (sizeof(struct header) + VALUES * 2)

struct slot {
    struct bpf_spin_lock lock; u32 round, count, unused; u64 contributors; u32 squares[MOST_WORKERS]; u64 lanes[WORDS];
};

/* Ports and addresses are in the order of the network. */
struct config { u64 key[2]; u16 job; u8 workers, unused; u16 port, reply_port; u32 group; u32 muted; };

enum verdict { PASSED, WRONG_SIZE, ALIEN, UNFIT, UNSIGNED, STALE, EARLY, DUPLICATE, RESENT, ADDED, COMPLETED, VERDICTS = 16 };
struct counters { u64 of[VERDICTS]; };

struct { UINT(type, MAP_ARRAY); UINT(max_entries, SLOTS * 2); u32 *key; struct slot *value; } slots SEC(".maps");
struct { UINT(type, MAP_ARRAY); UINT(max_entries, 1); u32 *key; struct config *value; } config SEC(".maps");
struct { UINT(type, MAP_PERCPU_ARRAY); UINT(max_entries, 1); u32 *key; struct counters *value; } counters SEC(".maps");
struct { UINT(type, MAP_DEVMAP); UINT(max_entries, 64); UINT(key_size, 4); UINT(value_size, 4); } ports SEC(".maps");

INLINE u16 swapped(u16 value) { return value << 8 | value >> 8; }

INLINE u64 rotated(u64 value, int by) { return value << by | value >> (64 - by); }

#define SIP_ROUND                                                          \
    do {                                                                   \
        v0 += v1; v1 = rotated(v1, 13); v1 ^= v0; v0 = rotated(v0, 32);    \
        v2 += v3; v3 = rotated(v3, 16); v3 ^= v2;                          \
        v0 += v3; v3 = rotated(v3, 21); v3 ^= v0;                          \
        v2 += v1; v1 = rotated(v1, 17); v1 ^= v2; v2 = rotated(v2, 32);    \
    } while (0)
#define SIP_WORD(word) do { u64 m = (word); v3 ^= m; SIP_ROUND; SIP_ROUND; v0 ^= m; } while (0)

/* The sum of the squares of four values. */
INLINE u64 squares_of(u64 word)
{
    signed long long a = (signed long long)(word << 48) >> 48, b = (signed long long)(word << 32) >> 48;
    signed long long c = (signed long long)(word << 16) >> 48, d = (signed long long)word >> 48;
    return a * a + b * b + c * c + d * d;
}

/* SipHash-2-4 of the header without its tag, and the values. The squares of the values are added meanwhile, if they are
 * asked for: each step of the hash waits for the one before, and a processor computes them in these pauses. */
INLINE u64 tag_of(const struct config *c, const struct header *h, const u64 *words, u64 *squares)
{
    u64 v0 = c->key[0] ^ 0x736f6d6570736575ULL, v1 = c->key[1] ^ 0x646f72616e646f6dULL;
    u64 v2 = c->key[0] ^ 0x6c7967656e657261ULL, v3 = c->key[1] ^ 0x7465646279746573ULL;
    const u64 *head = (const u64 *)h;

    SIP_WORD(head[0]);
    SIP_WORD(head[1]);
    SIP_WORD(head[2]);
    SIP_WORD(h->contributors);
    for (int i = 0; i < MOST_WORKERS / 2; i++)
        SIP_WORD(((const u64 *)h->squares)[i]);
#pragma clang loop unroll_count(4)
    for (int i = 0; i < WORDS; i++) {
        u64 word = words[i];
        SIP_WORD(word);
        if (squares)
            *squares += squares_of(word);
    }
    SIP_WORD((u64)((PAYLOAD - 8) & 0xff) << 56);
    v2 ^= 0xff;
    SIP_ROUND; SIP_ROUND; SIP_ROUND; SIP_ROUND;
    return v0 ^ v1 ^ v2 ^ v3;
}

/* Four sums of 16 bits, each of which wraps around by itself. */
INLINE u64 added(u64 a, u64 b)
{
    return ((a & 0x7fff7fff7fff7fffULL) + (b & 0x7fff7fff7fff7fffULL)) ^ ((a ^ b) & 0x8000800080008000ULL);
}

INLINE int counted(struct counters *n, enum verdict verdict, int action)
{
    n->of[verdict]++;
    return action;
}

SEC("xdp") int sum(struct xdp_md *context)
{
    u8 *frame = (u8 *)(long)context->data, *end = (u8 *)(long)context->data_end;
    u32 zero = 0;
    struct counters *n = map_lookup(&counters, &zero);
    const struct config *c = map_lookup(&config, &zero);
    if (!n || !c)
        return XDP_PASS;
    /* Ethernet, IPv4 without options and not in fragments, UDP to the port of the job. */
    if (frame + FRAME_HEAD > end)
        return counted(n, PASSED, XDP_PASS);
    u16 *head = (u16 *)frame;
    if (head[6] != swapped(0x0800) || frame[14] != 0x45 || (head[10] & swapped(0x3fff)) || frame[23] != 17 || head[18] != c->port)
        return counted(n, PASSED, XDP_PASS);
    struct header *h = (struct header *)(frame + FRAME_HEAD);
    if (head[19] != swapped(8 + PAYLOAD) || head[8] != swapped(28 + PAYLOAD) || (u8 *)h + PAYLOAD > end)
        return counted(n, WRONG_SIZE, XDP_DROP);
    u64 *words = (u64 *)(h + 1);

    if (h->magic != MAGIC)
        return counted(n, ALIEN, XDP_DROP);
    u32 worker = h->worker, round = h->round, place = h->slot;
    if (h->job != c->job || h->workers != c->workers || worker >= h->workers || worker >= MOST_WORKERS ||
        h->values != VALUES || place >= SLOTS || round == 0 || h->chunk != (round - 1) * SLOTS + place ||
        h->contributors != 1ULL << worker)
        return counted(n, UNFIT, XDP_DROP);
    u64 squares = 0;
    if (tag_of(c, h, words, &squares) != h->tag)
        return counted(n, UNSIGNED, XDP_DROP);
    if (c->muted >> worker & 1) {
        squares = 0;
        for (int i = 0; i < WORDS; i++) {
            words[i] = 0;
            /* The compiler would call a function, which there is not. */
            asm volatile("" ::: "memory");
        }
    }

    u32 at = place * 2 + (round & 1);
    struct slot *s = map_lookup(&slots, &at);
    if (!s)
        return XDP_DROP;
    u64 bit = 1ULL << worker, contributors = 0;
    enum verdict verdict;
    u32 workers = c->workers;

    spin_lock(&s->lock);
    u32 had = s->round;
    if (had != round) {
        u32 next = had ? had + 2 : 2 - (round & 1);
        int is_complete = !had || s->count == workers;
        if (round == next && is_complete) {
            s->round = round;
            s->count = 0;
            s->contributors = 0;
        } else {
            verdict = (int)(round - had) < 0 ? STALE : EARLY;
            goto unlock;
        }
    }
    if (s->contributors & bit) {
        verdict = s->count == workers ? RESENT : DUPLICATE;
    } else {
        if (s->count == 0) {
#pragma clang loop unroll_count(8)
            for (int i = 0; i < WORDS; i++)
                s->lanes[i] = words[i];
        } else {
#pragma clang loop unroll_count(8)
            for (int i = 0; i < WORDS; i++)
                s->lanes[i] = added(s->lanes[i], words[i]);
        }
        s->squares[worker & (MOST_WORKERS - 1)] = squares >> SQUARES_SHIFT;
        s->contributors |= bit;
        s->count++;
        verdict = s->count == workers ? COMPLETED : ADDED;
    }
    if (verdict == COMPLETED || verdict == RESENT) {
        contributors = s->contributors;
        for (int i = 0; i < MOST_WORKERS; i++)
            h->squares[i] = s->squares[i];
#pragma clang loop unroll_count(8)
        for (int i = 0; i < WORDS; i++)
            words[i] = s->lanes[i];
    }
unlock:
    spin_unlock(&s->lock);
    if (verdict != COMPLETED && verdict != RESENT)
        return counted(n, verdict, XDP_DROP);

    /* The packet becomes the result. */
    h->worker = RESULT;
    h->contributors = contributors;
    h->tag = tag_of(c, h, words, 0);
    u16 from_port = head[17];
    u32 *from = (u32 *)(frame + 26), *to = (u32 *)(frame + 30);
    u32 sender = *from;
    *from = *to;
    head[17] = c->port;
    head[20] = 0;
    u8 mac[6];
    for (int i = 0; i < 6; i++) {
        mac[i] = frame[i];
        frame[i] = frame[6 + i];
        frame[6 + i] = mac[i];
    }
    if (verdict == RESENT) {
        *to = sender;
        head[18] = from_port;
    } else {
        u8 *group = (u8 *)&c->group;
        *to = c->group;
        head[18] = c->reply_port;
        frame[0] = 0x01;
        frame[1] = 0x00;
        frame[2] = 0x5e;
        frame[3] = group[1] & 0x7f;
        frame[4] = group[2];
        frame[5] = group[3];
    }
    head[12] = 0;
    u32 check = 0;
    for (int i = 7; i < 17; i++)
        check += head[i];
    check = (check & 0xffff) + (check >> 16);
    check = (check & 0xffff) + (check >> 16);
    head[12] = ~check;
    if (verdict == RESENT)
        return counted(n, RESENT, XDP_TX);
    n->of[COMPLETED]++;
    return redirect_map(&ports, 0, TO_ALL_PORTS);
}

/* Lets everything through. On a virtual Ethernet pair, the end that receives what the other end's program sends needs a
 * program too. */
SEC("xdp") int pass(__attribute__((unused)) struct xdp_md *context)
{
    return XDP_PASS;
}

char terms[] SEC("license") = "Dual MIT/GPL";
