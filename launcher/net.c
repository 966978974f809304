/* net.c - the few rtnetlink requests that wire a cluster: a bridge, a veth pair per node,
 * addresses, links up.
 *
 * Why it exists: the `ip` command need not be installed, and 64 nodes are wired in well under a
 * second. Message layouts are those of rtnetlink(7), linux/if_link.h and linux/veth.h. Each request
 * waits for its acknowledgement, so an error names its step. */
#include "sandbox.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

unsigned if_nametoindex(const char *name); /* net/if.h, which clashes with linux/if.h */

struct request {
    struct nlmsghdr header;
    char body[512];
};

static int netlink_open(void)
{
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0) die_with_errno("opening a netlink socket");
    return fd;
}

static void *append(struct request *request, const void *data, size_t length)
{
    size_t at = NLMSG_ALIGN(request->header.nlmsg_len);
    if (at + length > sizeof *request)
        die("a netlink request does not fit its buffer; report this as a defect");
    void *place = (char *)request + at;
    if (data) memcpy(place, data, length);
    request->header.nlmsg_len = (unsigned)(at + length);
    return place;
}

static struct rtattr *attribute(struct request *request, unsigned short type, const void *data,
                                size_t length)
{
    struct rtattr header = {.rta_type = type, .rta_len = (unsigned short)RTA_LENGTH(length)};
    struct rtattr *place = append(request, &header, sizeof header);
    append(request, data, length);
    return place;
}

static void attribute_text(struct request *request, unsigned short type, const char *text)
{
    attribute(request, type, text, strlen(text) + 1);
}

static struct rtattr *nest_open(struct request *request, unsigned short type)
{
    return attribute(request, type, NULL, 0);
}

static void nest_close(struct request *request, struct rtattr *nest)
{
    /* a nest must not reach past the message */
    request->header.nlmsg_len = NLMSG_ALIGN(request->header.nlmsg_len);
    nest->rta_len = (unsigned short)((char *)request + request->header.nlmsg_len - (char *)nest);
}

static struct request begin(unsigned short type, unsigned short flags)
{
    struct request request = {.header = {.nlmsg_len = NLMSG_HDRLEN, .nlmsg_type = type}};
    request.header.nlmsg_flags = (unsigned short)(NLM_F_REQUEST | NLM_F_ACK | flags);
    return request;
}

/* Sends one request and waits for its acknowledgement; -1 with errno set when the kernel refused.
 */
static int ask(int fd, struct request *request)
{
    union {
        struct nlmsghdr header;
        char bytes[4096];
    } answer;
    if (send(fd, request, request->header.nlmsg_len, 0) < 0) return -1;
    ssize_t length;
    do length = recv(fd, &answer, sizeof answer, 0);
    while (length < 0 && errno == EINTR);
    if (length < 0) return -1;
    if (!NLMSG_OK(&answer.header, (size_t)length) || answer.header.nlmsg_type != NLMSG_ERROR) {
        errno = EPROTO;
        return -1;
    }
    errno = -((struct nlmsgerr *)NLMSG_DATA(&answer.header))->error;
    return errno ? -1 : 0;
}

int bridge_make(const char *name)
{
    int fd = netlink_open();
    struct request request = begin(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
    struct ifinfomsg link = {.ifi_family = AF_UNSPEC, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    append(&request, &link, sizeof link);
    attribute_text(&request, IFLA_IFNAME, name);
    struct rtattr *info = nest_open(&request, IFLA_LINKINFO);
    attribute_text(&request, IFLA_INFO_KIND, "bridge");
    nest_close(&request, info);
    if (ask(fd, &request)) die_with_errno("creating the bridge between the nodes");
    close(fd);
    int index = (int)if_nametoindex(name);
    if (!index) die_with_errno("finding the bridge between the nodes");
    return index;
}

bool veth_make(const char *name, int bridge, const char *peer_name, pid_t peer)
{
    int fd = netlink_open();
    struct request request = begin(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
    struct ifinfomsg link = {.ifi_family = AF_UNSPEC, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    unsigned peer_pid = (unsigned)peer;
    append(&request, &link, sizeof link);
    attribute_text(&request, IFLA_IFNAME, name);
    attribute(&request, IFLA_MASTER, &bridge, sizeof bridge);
    struct rtattr *info = nest_open(&request, IFLA_LINKINFO);
    attribute_text(&request, IFLA_INFO_KIND, "veth");
    struct rtattr *data = nest_open(&request, IFLA_INFO_DATA);
    struct rtattr *end = nest_open(&request, VETH_INFO_PEER);
    /* this end cannot come up before the other end exists (veth_open) */
    link = (struct ifinfomsg){.ifi_family = AF_UNSPEC};
    append(&request, &link, sizeof link);
    attribute_text(&request, IFLA_IFNAME, peer_name);
    attribute(&request, IFLA_NET_NS_PID, &peer_pid, sizeof peer_pid);
    nest_close(&request, end);
    nest_close(&request, data);
    nest_close(&request, info);
    int failed = ask(fd, &request) ? errno : 0;
    close(fd);
    errno = failed;
    return !failed;
}

void link_up(const char *interface)
{
    int fd = netlink_open();
    struct request request = begin(RTM_NEWLINK, 0);
    struct ifinfomsg link = {.ifi_family = AF_UNSPEC, .ifi_flags = IFF_UP, .ifi_change = IFF_UP};
    link.ifi_index = (int)if_nametoindex(interface);
    append(&request, &link, sizeof link);
    if (ask(fd, &request)) die_with_errno("bringing the interface %s up", interface);
    close(fd);
}

void address_add(const char *interface, const char *address, int prefix)
{
    int fd = netlink_open();
    struct in_addr parsed;
    if (inet_pton(AF_INET, address, &parsed) != 1)
        die("'%s' is not an IPv4 address; fix the spec", address);
    struct request request = begin(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
    struct ifaddrmsg message = {.ifa_family = AF_INET, .ifa_prefixlen = (unsigned char)prefix};
    message.ifa_index = if_nametoindex(interface);
    append(&request, &message, sizeof message);
    attribute(&request, IFA_LOCAL, &parsed, sizeof parsed);
    attribute(&request, IFA_ADDRESS, &parsed, sizeof parsed);
    if (ask(fd, &request)) die_with_errno("giving %s the address %s", interface, address);
    close(fd);
}
