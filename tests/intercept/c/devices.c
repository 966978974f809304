/* devices.c - what the runtime and the driver report about the visible GPUs, as `key value` lines.
 */
#include "conditions.h"

int cudaGetDeviceCount(int *);
int cudaGetDeviceProperties(void *, int);
int cudaDeviceGetAttribute(int *, int, int);
int cudaDeviceGetPCIBusId(char *, int, int);
int cudaDeviceGetByPCIBusId(int *, const char *);
int cudaDeviceGetStreamPriorityRange(int *, int *);
int cudaDeviceCanAccessPeer(int *, int, int);
int cuInit(unsigned);
int cuLogsRegisterCallback(void *, void *, void **);
int cuLogsUnregisterCallback(void *);
int cuDeviceGetCount(int *);
int cuDeviceGetAttribute(int *, int, int);
int cuDeviceGetName(char *, int, int);
int cuDeviceGetUuid_v2(unsigned char *, int);
int cuDeviceTotalMem_v2(size_t *, int);
int cuDeviceGetP2PAttribute(int *, int, int, int);

static void run(void)
{
    int count = -1, driver_count = -1, value, least, greatest;
    void *listener = NULL;
    printf("init %d\n", CALL(cuInit, 0));
    int listening = CALL(cuLogsRegisterCallback, (void *)run, NULL, &listener);
    printf("listener %d %d %d\n", listening, listener != NULL,
           CALL(cuLogsUnregisterCallback, listener));
    printf("count_rc %d\n", CALL(cudaGetDeviceCount, &count));
    CALL(cuDeviceGetCount, &driver_count);
    printf("count %d\ndriver_count %d\n", count, driver_count);
    for (int device = 0; device < count; device++) {
        char text[64] = "";
        unsigned char uuid[16] = {0};
        CALL(cudaDeviceGetPCIBusId, text, sizeof text, device);
        value = -1;
        CALL(cudaDeviceGetByPCIBusId, &value, text);
        printf("pci.%d %s\nbypci.%d %d\n", device, text, device, value);
        CALL(cuDeviceGetUuid_v2, uuid, device);
        printf("uuid.%d ", device);
        for (int i = 0; i < 16; i++) printf("%02x", uuid[i]);
        printf("\n");
    }
    if (count > 0) {
        char name[64] = "";
        size_t bytes = 0;
        CALL(cuDeviceGetName, name, sizeof name, 0);
        CALL(cuDeviceTotalMem_v2, &bytes, 0);
        printf("name %s\nmemory %zu\n", name, bytes);
        for (int attribute = 1; attribute < 160; attribute++) {
            int other = 0;
            value = 0;
            int rc = CALL(cuDeviceGetAttribute, &value, attribute, 0);
            int runtime_rc = CALL(cudaDeviceGetAttribute, &other, attribute, 0);
            if (rc == 0 && runtime_rc == 0 && value == other)
                printf("attribute.%d %d\n", attribute, value);
            else if (rc != runtime_rc || value != other)
                printf("attribute.%d differs\n", attribute);
        }
        static unsigned char properties[4096];
        printf("properties_rc %d\nproperties ", CALL(cudaGetDeviceProperties, properties, 0));
        for (int i = 0; i < 1200; i++) printf("%02x", properties[i]);
        printf("\n");
    }
    if (count > 1) {
        CALL(cudaDeviceCanAccessPeer, &value, 0, 1);
        printf("peer %d\n", value);
        CALL(cudaDeviceCanAccessPeer, &value, 1, 1);
        printf("self %d\n", value);
        CALL(cuDeviceGetP2PAttribute, &value, 3, 0, 1);
        printf("atomics %d\n", value);
    }
    CALL(cudaDeviceGetStreamPriorityRange, &least, &greatest);
    printf("priorities %d %d\n", least, greatest);
    printf("no_device %d\n", CALL(cuDeviceGetAttribute, &value, 1, count));
    printf("no_attribute %d\n", CALL(cuDeviceGetAttribute, &value, 100000, 0));
    printf("no_place %d\n", CALL(cuDeviceGetAttribute, NULL, 1, 0));
}
