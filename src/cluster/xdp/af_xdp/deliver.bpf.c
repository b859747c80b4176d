/* Hands a rank's results to its AF_XDP sockets: the XDP program at the interface by which they come.
 *
 * It takes frames that hold exactly one UDP packet of the length in wire.rs, sent to the rank's address or the ranks' group
 * and to its port. Each goes to the socket of the queue that it came by. All else passes, also the packets of a queue without
 * a socket: the rank's ordinary socket gets those. Whether a packet is a result of the job is for the rank to find out.
 *
 * Whoever changes this runs `.ci/xdp-object --write`. Nothing is included, so the object depends on the compiler alone.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define UINT(name, value) int (*name)[value]

struct xdp_md { u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex; };

enum { XDP_PASS = 2 };
enum { MAP_ARRAY = 2, MAP_XSKMAP = 17 };

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*redirect_map)(void *map, u64 key, u64 flags) = (void *)51;

/* As in frame.rs and wire.rs. */
#define FRAME_HEAD 42
#define PACKET 1448
#define FRAME (FRAME_HEAD + PACKET)

/* In network byte order. */
struct route { u32 own, group; u16 port, unused; };

struct { UINT(type, MAP_ARRAY); UINT(max_entries, 1); u32 *key; struct route *value; } route SEC(".maps");
struct { UINT(type, MAP_XSKMAP); UINT(max_entries, 256); UINT(key_size, 4); UINT(value_size, 4); } sockets SEC(".maps");

static u16 swapped(u16 value) { return value << 8 | value >> 8; }

SEC("xdp") int deliver(struct xdp_md *context)
{
    u8 *frame = (u8 *)(long)context->data, *end = (u8 *)(long)context->data_end;
    u32 zero = 0;
    struct route *r = map_lookup(&route, &zero);
    if (!r || frame + FRAME > end)
        return XDP_PASS;
    /* Keeps the compiler from merging this comparison with the next: the verifier does not follow that. */
    asm volatile("" : "+r"(end));
    /* The rank takes no frame with something behind the packet. */
    if (frame + FRAME < end)
        return XDP_PASS;
    u16 *head = (u16 *)frame;
    u32 to = *(u32 *)(frame + 30);
    /* IPv4 without options, neither a fragment nor the first of several, UDP. */
    if (head[6] != swapped(0x0800) || frame[14] != 0x45 || head[10] & swapped(0x3fff) || frame[23] != 17)
        return XDP_PASS;
    if (head[8] != swapped(28 + PACKET) || head[19] != swapped(8 + PACKET) || head[18] != r->port)
        return XDP_PASS;
    if (to != r->own && to != r->group)
        return XDP_PASS;
    return redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}

char terms[] SEC("license") = "Dual MIT/GPL";
