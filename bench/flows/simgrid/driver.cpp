// Runs a schedule of flows through SimGrid's flow model, and says what it cost.
//
// Why it exists: "faster than SimGrid" must be measured on the same flows, over the same links,
// with the same sharing: plain max-min fairness, no latency, no TCP. Only SimGrid's network model
// is to be timed, so platform and schedule are read before the clock starts, all flows of an
// instant start in one call into SimGrid's kernel, and a route is handed over instead of searched:
// two hosts, and a zone that answers with the route of the flow being started (in a fat tree with
// chosen spines, two flows of one pair of hosts take different links, which SimGrid's own zones
// cannot say). One cost that is not the flow model's stays in: SimGrid 3.32 keeps all one-sided
// communications in one list and searches it at each end (docs/flows-benchmark.md).
//
// Standard input: "LINKS FLOWS", the capacity of each link in bytes/ns, then for each flow, by step
// and start: "STEP START_NS SIZE_BYTES HOPS link...". A step begins when all flows of the one
// before are complete; START_NS counts from there. Arguments: CPU_LIMIT_S, and optionally a file
// for the completion times, in ns, in the order of the flows. Standard output: one line of JSON.
// Exit status 3 when the simulation has used CPU_LIMIT_S, 2 on bad input.

#include <simgrid/kernel/routing/NetZoneImpl.hpp>
#include <simgrid/s4u.hpp>
#include <simgrid/simix.hpp>
#include <simgrid/version.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>
#include <vector>

namespace sg4 = simgrid::s4u;
using simgrid::kernel::routing::NetPoint;
using simgrid::kernel::routing::NetZoneImpl;
using simgrid::kernel::routing::Route;
using LinkList = std::vector<simgrid::kernel::resource::StandardLinkImpl *>;

namespace
{

constexpr double ns_per_s = 1e9;
constexpr int exit_bad_input = 2;
constexpr int exit_out_of_time = 3;

struct Flow {
    long step;
    double start_s;
    uint64_t size;
    LinkList route;
    sg4::CommPtr comm;
};

class RouteOfTheFlow : public NetZoneImpl
{
public:
    const LinkList *current = nullptr;

    explicit RouteOfTheFlow(const std::string &name) : NetZoneImpl(name) {}

    void get_local_route(const NetPoint *, const NetPoint *, Route *into, double *) override
    {
        into->link_list_ = *current;
    }
};

double read_number()
{
    double value;
    if (std::scanf("%lf", &value) != 1) {
        std::fputs("driver: the schedule ends early or holds something that is not a number\n",
                   stderr);
        std::exit(exit_bad_input);
    }
    return value;
}

std::vector<Flow> read_schedule(NetZoneImpl *zone)
{
    const size_t link_count = read_number();
    const size_t flow_count = read_number();
    LinkList links;
    for (size_t i = 0; i < link_count; i++)
        links.push_back(zone->create_link("link-" + std::to_string(i), {read_number() * ns_per_s})
                            ->seal()
                            ->get_impl());
    std::vector<Flow> flows(flow_count);
    for (Flow &flow : flows) {
        flow.step = static_cast<long>(read_number());
        flow.start_s = read_number() / ns_per_s;
        flow.size = static_cast<uint64_t>(read_number());
        for (auto hops = static_cast<long>(read_number()); hops > 0; hops--) {
            const auto link = static_cast<size_t>(read_number());
            if (link >= link_count) {
                std::fprintf(stderr, "driver: link %zu of %zu\n", link, link_count);
                std::exit(exit_bad_input);
            }
            flow.route.push_back(links[link]);
        }
    }
    return flows;
}

void run_schedule(std::vector<Flow> &flows, RouteOfTheFlow *zone, sg4::Host *source,
                  sg4::Host *target)
{
    size_t next = 0;
    while (next < flows.size()) {
        const double begin = sg4::Engine::get_clock();
        const size_t first = next;
        while (next < flows.size() && flows[next].step == flows[first].step) {
            const double start = flows[next].start_s;
            if (begin + start > sg4::Engine::get_clock())
                sg4::this_actor::sleep_until(begin + start);
            simgrid::kernel::actor::simcall_answered([&] {
                const long step = flows[first].step;
                for (; next < flows.size() && flows[next].step == step &&
                       flows[next].start_s == start;
                     next++) {
                    zone->current = &flows[next].route;
                    flows[next].comm = sg4::Comm::sendto_init(source, target);
                    flows[next].comm->set_payload_size(flows[next].size)->start();
                }
            });
        }
        for (size_t i = first; i < next; i++) flows[i].comm->wait();
    }
}

double cpu_seconds()
{
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
           1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

void out_of_time(int) { _exit(exit_out_of_time); }

} // namespace

int main(int argc, char **argv)
{
    sg4::Engine engine(&argc, argv);
    if (argc < 2 || std::atoi(argv[1]) < 1) {
        std::fputs("usage: driver CPU_LIMIT_S [COMPLETIONS_FILE] < SCHEDULE\n", stderr);
        return exit_bad_input;
    }
    auto *zone = new RouteOfTheFlow("network"); // the engine owns it from here
    sg4::Host *source = zone->create_host("source", std::vector<double>{1e9});
    sg4::Host *target = zone->create_host("target", std::vector<double>{1e9});
    std::vector<Flow> flows = read_schedule(zone);
    zone->seal();
    sg4::Actor::create("scheduler", source, [&] { run_schedule(flows, zone, source, target); });

    std::signal(SIGPROF, out_of_time);
    const itimerval limit = {{0, 0}, {std::atoi(argv[1]), 0}};
    setitimer(ITIMER_PROF, &limit, nullptr);
    const double before = cpu_seconds();
    engine.run();
    const double cpu = cpu_seconds() - before;
    const itimerval off = {};
    setitimer(ITIMER_PROF, &off, nullptr);

    std::printf(
        "{\"flows\": %zu, \"cpu_s\": %.6f, \"makespan_ns\": %.3f, \"version\": \"%d.%d\"}\n",
        flows.size(), cpu, sg4::Engine::get_clock() * ns_per_s, SIMGRID_VERSION_MAJOR,
        SIMGRID_VERSION_MINOR);
    if (argc > 2) {
        FILE *file = std::fopen(argv[2], "w");
        bool good = file != nullptr;
        for (size_t i = 0; good && i < flows.size(); i++)
            good = std::fprintf(file, "%.3f\n", flows[i].comm->get_finish_time() * ns_per_s) > 0;
        if (file == nullptr || std::fclose(file) != 0 || not good) {
            std::perror(argv[2]);
            return exit_bad_input;
        }
    }
    std::fflush(stdout);
    _exit(0); // tearing a platform down one communication at a time is not what is measured
}
