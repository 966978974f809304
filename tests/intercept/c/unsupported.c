/* unsupported.c - calls functions that are not implemented, each twice, and prints what they
 * return. */
#include "conditions.h"

int cudaGraphAddHostNode(void);
int cuGraphicsMapResources(void);
int cublasSgbmv_v2(void);
int cudnnTransformFilter(void);
int nvmlDeviceGetFanSpeed(void);

static void run(void)
{
    for (int i = 0; i < 2; i++) {
        printf("cudaGraphAddHostNode %d\n", CALL(cudaGraphAddHostNode));
        printf("cuGraphicsMapResources %d\n", CALL(cuGraphicsMapResources));
        printf("cublasSgbmv_v2 %d\n", CALL(cublasSgbmv_v2));
        printf("cudnnTransformFilter %d\n", CALL(cudnnTransformFilter));
        printf("nvmlDeviceGetFanSpeed %d\n", CALL(nvmlDeviceGetFanSpeed));
    }
}
