/* Uses NVTX by NVIDIA's own header, as libraries do. Returns what its functions returned. */
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static void *stop(void *id)
{
    nvtxRangeEnd(*(nvtxRangeId_t *)id);
    return NULL;
}

void ranges(int *levels)
{
    nvtxDomainHandle_t domain = nvtxDomainCreateA("library");
    nvtxEventAttributes_t event = {0};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    levels[0] = nvtxRangePushA("outer");
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = nvtxDomainRegisterStringA(domain, "registered");
    levels[1] = nvtxDomainRangePushEx(domain, &event);
    event.messageType = NVTX_MESSAGE_TYPE_ASCII;
    event.message.ascii = "inner";
    levels[2] = nvtxRangePushEx(&event);
    nvtxDomainMarkEx(domain, &event);
    nvtxMarkW(L"gr\u00fc\u00df \U0001f600");
    nvtxRangeId_t id = nvtxRangeStartA("from one thread to another");
    levels[3] = nvtxRangePop();
    levels[4] = nvtxRangePop();
    levels[5] =
        nvtxDomainRangePop(domain); /* after ranges of another domain that began before it */
    levels[6] = nvtxRangePop();     /* nothing is open */
    event.messageType = NVTX_MESSAGE_UNKNOWN;
    nvtxMarkEx(&event);
    pthread_t thread;
    if (pthread_create(&thread, NULL, stop, &id) == 0) pthread_join(thread, NULL);
    nvtxRangeEnd(id); /* it has ended */
    nvtxRangeEnd(77);
}
