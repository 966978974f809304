/* nvml.c - what NVML reports about the node's GPUs, as `key value` lines. */
#include "conditions.h"

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
};
struct fabric {
    unsigned version;
    unsigned char uuid[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
};
int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int);
int nvmlSystemGetDriverVersion(char *, unsigned);
int nvmlSystemGetCudaDriverVersion_v2(int *);
int nvmlDeviceGetCount_v2(unsigned *);
int nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetHandleByUUID(const char *, void **);
int nvmlDeviceGetHandleByPciBusId_v2(const char *, void **);
int nvmlDeviceGetName(void *, char *, unsigned);
int nvmlDeviceGetUUID(void *, char *, unsigned);
int nvmlDeviceGetIndex(void *, unsigned *);
int nvmlDeviceGetPciInfo_v3(void *, struct pci *);
int nvmlDeviceGetCudaComputeCapability(void *, int *, int *);
int nvmlDeviceGetNvLinkRemoteDeviceType(void *, unsigned, unsigned *);
int nvmlDeviceGetP2PStatus(void *, void *, unsigned, unsigned *);
int nvmlDeviceGetGpuFabricInfoV(void *, struct fabric *);
int nvmlDeviceGetTemperature(void *, unsigned, unsigned *);
int nvmlDeviceGetMaxClockInfo(void *, unsigned, unsigned *);

static void run(void)
{
    char text[128] = "";
    int number = 0, minor = 0;
    unsigned count = 0, index, value = 0;
    void *first = NULL, *other = NULL;
    printf("init %d\n", CALL(nvmlInit_v2));
    CALL(nvmlSystemGetDriverVersion, text, sizeof text);
    CALL(nvmlSystemGetCudaDriverVersion_v2, &number);
    printf("driver %s\ncuda %d\n", text, number);
    printf("short %d\n", CALL(nvmlSystemGetDriverVersion, text, 3));
    CALL(nvmlDeviceGetCount_v2, &count);
    printf("count %u\n", count);
    for (unsigned i = 0; i < count; i++) {
        struct pci pci = {0};
        void *device, *same = NULL;
        CALL(nvmlDeviceGetHandleByIndex_v2, i, &device);
        CALL(nvmlDeviceGetUUID, device, text, sizeof text);
        CALL(nvmlDeviceGetHandleByUUID, text, &same);
        CALL(nvmlDeviceGetIndex, same, &index);
        printf("uuid.%u %s\nby_uuid.%u %u\n", i, text, i, index);
        CALL(nvmlDeviceGetPciInfo_v3, device, &pci);
        CALL(nvmlDeviceGetHandleByPciBusId_v2, pci.text, &same);
        CALL(nvmlDeviceGetIndex, same, &index);
        printf("pci.%u %s\nby_pci.%u %u\n", i, pci.text, i, index);
        unsigned links = 0, type = 99, switches = 0;
        while (links < 64 && CALL(nvmlDeviceGetNvLinkRemoteDeviceType, device, links, &type) == 0) {
            links++;
            switches += type == 2;
        }
        printf("links.%u %u\nswitches.%u %u\n", i, links, i, switches);
    }
    CALL(nvmlDeviceGetHandleByIndex_v2, 0, &first);
    CALL(nvmlDeviceGetName, first, text, sizeof text);
    CALL(nvmlDeviceGetCudaComputeCapability, first, &number, &minor);
    printf("name %s\ncapability %d.%d\n", text, number, minor);
    if (count > 1) {
        CALL(nvmlDeviceGetHandleByIndex_v2, 1, &other);
        CALL(nvmlDeviceGetP2PStatus, first, other, 0, &value);
        printf("p2p_read %u\n", value);
    }
    struct fabric fabric = {.version = sizeof fabric | 2u << 24, .state = 77};
    number = CALL(nvmlDeviceGetGpuFabricInfoV, first, &fabric);
    printf("fabric %d %u\n", number, fabric.state);
    CALL(nvmlDeviceGetMaxClockInfo, first, 1, &value);
    printf("clock %u\n", value);
    printf("temperature %d\n", CALL(nvmlDeviceGetTemperature, first, 0, &value));
    printf("bad_index %d\nbad_handle %d\n", CALL(nvmlDeviceGetHandleByIndex_v2, count, &other),
           CALL(nvmlDeviceGetIndex, (void *)text, &value));
    printf("text %s\n", CALL(nvmlErrorString, 3));
    printf("shutdown %d\n", CALL(nvmlShutdown));
}
