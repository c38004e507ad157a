/* SPDX-License-Identifier: Apache-2.0
 *
 * What frameworks ask when they start: attributes, limits, pools, functions by name, the thread's
 * own stream.
 */
#include "hip.h"

/* The numbers that AMD's runtime answers: of 0 to 99, and of 10000 to 10029. */
static const char *const answered[] = {
    "1111111111" "1111111111" "1011111111" "1110000001" "0111100001" "1101001111"
    "1111011111" "1111111011" "0111110111" "1111111000",
    "0010011111" "1111111111" "1110000000",
};

static int attribute_of(int number)
{
    long long room[2] = {-1, -1};
    ANSWERS(0, hipDeviceGetAttribute((int *)room, number, 0));
    /* Registers that the device has not are addresses; all others are numbers. */
    HOLDS(number == 10005 || number == 10006 ? room[0] == 0 : room[0] >> 32 == -1);
    HOLDS(room[1] == -1);
    return (int)room[0];
}

static void ask_attributes(void)
{
    int value = 7;

    for (int part = 0; part < 2; part++)
        for (int i = 0; answered[part][i]; i++) {
            int number = part * 10000 + i;
            if (answered[part][i] == '1')
                HOLDS(attribute_of(number) >= 0);
            else
                ANSWERS(1, hipDeviceGetAttribute(&value, number, 0));
        }
    HOLDS(value == 7);
    ANSWERS(101, hipDeviceGetAttribute(&value, 9998, 2));
    HOLDS(attribute_of(63) == attribute_of(10015));
    /* There are pools and virtual memory, no images, and no dma-buf. */
    HOLDS(attribute_of(43) == 0 && attribute_of(51) == 0 && attribute_of(10014) == 0);
    HOLDS(attribute_of(88) == 1 && attribute_of(89) == 1 && attribute_of(93) == 0);
    HOLDS(attribute_of(91) == 1);
}

static void set_limits(void)
{
    size_t size = 0;
    unsigned int flags = 7;
    int config = 7;

    ANSWERS(0, hipDeviceGetLimit(&size, 0));
    HOLDS(size == 1024);
    ANSWERS(0, hipDeviceSetLimit(2, 1 << 20));
    ANSWERS(0, hipDeviceGetLimit(&size, 2));
    HOLDS(size == 1 << 20);
    ANSWERS(215, hipDeviceGetLimit(&size, 1));
    ANSWERS(1, hipDeviceGetLimit(&size, 3));
    ANSWERS(1, hipDeviceGetLimit(NULL, 0));
    ANSWERS(1, hipDeviceSetLimit(0, 1 << 20));
    ANSWERS(0, hipDeviceSetCacheConfig(2));
    ANSWERS(0, hipDeviceGetCacheConfig(&config));
    HOLDS(config == 0);
    ANSWERS(1, hipDeviceSetCacheConfig(4));
    ANSWERS(0, hipDeviceSetSharedMemConfig(2));
    ANSWERS(0, hipDeviceGetSharedMemConfig(&config));
    HOLDS(config == 1);
    ANSWERS(1, hipDeviceSetSharedMemConfig(3));
    ANSWERS(1, hipDeviceGetCacheConfig(NULL));
    ANSWERS(1, hipDeviceGetSharedMemConfig(NULL));
    ANSWERS(0, hipSetDeviceFlags(4));
    ANSWERS(0, hipGetDeviceFlags(&flags));
    HOLDS(flags == 4);
    ANSWERS(1, hipSetDeviceFlags(3));
}

static void use_pools(void)
{
    hipMemPoolProps props;
    hipMemPool_t usual = NULL, pool = NULL, found = NULL;
    hipMemAccessDesc access = {{1, 1}, 3};
    uint64_t size = (uint64_t)-1;
    int flag = 7;
    void *memory = NULL;

    memset(&props, 0, sizeof props);
    props.allocType = props.location.type = 1;
    ANSWERS(0, hipDeviceGetDefaultMemPool(&usual, 0));
    ANSWERS(0, hipDeviceGetMemPool(&found, 0));
    HOLDS(usual && usual == found);
    ANSWERS(0, hipMemPoolCreate(&pool, &props));
    ANSWERS(1, hipMemPoolCreate(&pool, NULL));
    props.location.id = 2;
    ANSWERS(1, hipMemPoolCreate(&pool, &props));
    ANSWERS(0, hipMemPoolSetAttribute(pool, 4, &size));
    ANSWERS(0, hipMallocFromPoolAsync(&memory, 5000, pool, NULL));
    ANSWERS(0, hipMemset(memory, 1, 5000));
    ANSWERS(0, hipFreeAsync(memory, NULL));
    size = 0;
    ANSWERS(0, hipMemPoolGetAttribute(pool, 4, &size));
    HOLDS(size == (uint64_t)-1);
    ANSWERS(0, hipMemPoolGetAttribute(pool, 5, &size));
    HOLDS(size >= 5000);
    ANSWERS(0, hipMemPoolTrimTo(pool, 0));
    ANSWERS(0, hipMemPoolGetAttribute(pool, 5, &size));
    HOLDS(size == 0);
    ANSWERS(0, hipMemPoolGetAttribute(pool, 8, &size));
    HOLDS(size == 5000);
    ANSWERS(0, hipMemPoolGetAttribute(pool, 1, &flag));
    HOLDS(flag == 1);
    ANSWERS(1, hipMemPoolGetAttribute(pool, 9, &size));
    ANSWERS(1, hipMemPoolGetAttribute(pool, 1, NULL));
    ANSWERS(1, hipMemPoolSetAttribute(NULL, 1, &flag));
    ANSWERS(0, hipMemPoolSetAccess(pool, &access, 1));
    ANSWERS(0, hipMemPoolGetAccess(&flag, pool, &access.location));
    HOLDS(flag == 3);
    ANSWERS(101, hipMemPoolSetAccess(pool, &access, (size_t)-1 / 16));
    ANSWERS(0, hipDeviceSetMemPool(0, pool));
    ANSWERS(101, hipDeviceSetMemPool(1, pool));
    ANSWERS(0, hipMallocAsync(&memory, 100, NULL));
    ANSWERS(0, hipPointerGetAttribute(&found, 17, memory));
    HOLDS(found == pool);
    ANSWERS(0, hipFree(memory));
    ANSWERS(0, hipMemPoolDestroy(pool));
    ANSWERS(1, hipMemPoolDestroy(pool));
    ANSWERS(1, hipMemPoolDestroy(usual));
    ANSWERS(0, hipDeviceGetMemPool(&found, 0));
    HOLDS(found == usual);
}

static void share_pools(void)
{
    hipMemPoolProps props;
    hipMemPool_t pool = NULL, imported = NULL;
    hipMemPoolPtrExportData data;
    int descriptor = -1;
    uintptr_t word = 0;
    void *memory = NULL, *again = NULL;
    char byte = 0;

    memset(&props, 0, sizeof props);
    props.allocType = props.handleTypes = props.location.type = 1;
    ANSWERS(0, hipMemPoolCreate(&pool, &props));
    ANSWERS(1, hipMemPoolExportToShareableHandle(NULL, pool, 1, 0));
    ANSWERS(1, hipMemPoolExportToShareableHandle(&descriptor, NULL, 1, 0));
    ANSWERS(0, hipMemPoolExportToShareableHandle(&descriptor, pool, 1, 0));
    ANSWERS(0, hipMallocFromPoolAsync(&memory, 5000, pool, NULL));
    ANSWERS(0, hipMemset(memory, 9, 5000));
    ANSWERS(0, hipMemPoolExportPointer(&data, memory));
    ANSWERS(1, hipMemPoolExportPointer(NULL, memory));
    ANSWERS(1, hipMemPoolExportPointer(&data, NULL));

    ANSWERS(1, hipMemPoolImportFromShareableHandle(NULL, (void *)(intptr_t)descriptor, 1, 0));
    ANSWERS(1, hipMemPoolImportFromShareableHandle(&imported, NULL, 1, 0));
    /* The descriptor itself is wanted, and not where it is. */
    ANSWERS(2, hipMemPoolImportFromShareableHandle(&imported, &descriptor, 1, 0));
    ANSWERS(0, hipMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)descriptor, 1, 0));
    ANSWERS(0, hipMemPoolDestroy(imported));
    /* Only 32 bits are read, as of a word into which the export wrote an int. */
    word = 0x7f5a000000000000 | (unsigned)descriptor;
    ANSWERS(0, hipMemPoolImportFromShareableHandle(&imported, (void *)word, 1, 0));
    close(descriptor);
    ANSWERS(1, hipMemPoolImportPointer(NULL, imported, &data));
    ANSWERS(1, hipMemPoolImportPointer(&again, NULL, &data));
    ANSWERS(1, hipMemPoolImportPointer(&again, imported, NULL));
    ANSWERS(0, hipMemPoolImportPointer(&again, imported, &data));
    ANSWERS(0, hipMemcpy(&byte, (char *)again + 4999, 1, hipMemcpyDeviceToHost));
    HOLDS(again != memory && byte == 9);
    ANSWERS(1, hipIpcCloseMemHandle(again));
    ANSWERS(0, hipFreeAsync(again, NULL));
    ANSWERS(1, hipFree(again));
    ANSWERS(0, hipFree(memory));
    ANSWERS(2, hipMemPoolImportPointer(&again, imported, &data));
    ANSWERS(0, hipMemPoolDestroy(imported));
    ANSWERS(0, hipMemPoolDestroy(pool));
}

static void find_functions(void)
{
    hipError_t (*count)(int *) = NULL;
    void *found = NULL, *other = NULL;
    int devices = 0, state = 7;

    ANSWERS(0, hipGetProcAddress("hipGetDeviceCount", (void **)&count, 602, 0, &state));
    ANSWERS(0, count(&devices));
    HOLDS(devices == 2 && state == 0);
    ANSWERS(0, hipGetProcAddress("hipMemcpy", &found, 602, 2, NULL));
    ANSWERS(0, hipGetProcAddress("hipMemcpy_spt", &other, 602, 0, NULL));
    HOLDS(found && found == other);
    ANSWERS(0, hipGetProcAddress("hipMalloc", &found, 602, 2, NULL));
    ANSWERS(0, hipGetProcAddress("hipMalloc", &other, 602, 0, NULL));
    HOLDS(found == other);
    ANSWERS(0, hipGetProcAddress("hipGetDeviceProperties", &found, 602, 0, NULL));
    ANSWERS(0, hipGetProcAddress("hipGetDeviceProperties", &other, 502, 0, NULL));
    HOLDS(found == (void *)hipGetDevicePropertiesR0600 && found != other);
    ANSWERS(1, hipGetProcAddress("hipNonsense", &found, 602, 0, &state));
    HOLDS(state == 1 && !found);
    ANSWERS(1, hipGetProcAddress("hipMalloc", &found, 602, 3, NULL));
    ANSWERS(1, hipGetProcAddress(NULL, &found, 602, 0, NULL));
    ANSWERS(1, hipGetProcAddress("hipMalloc", NULL, 602, 0, NULL));
}

static void use_the_own_stream(void)
{
    char *memory = NULL, own[64];
    void *graph = NULL;
    hipStream_t stream = NULL;
    unsigned int synchronous = 1;
    int mode = 2, handle = 7;
    char is_synchronous = 0;

    ANSWERS(0, hipMalloc((void **)&memory, 64));
    ANSWERS(0, hipMemset_spt(memory, 1, 64));
    ANSWERS(0, hipMemset2DAsync_spt(memory, 8, 2, 4, 8, NULL));
    if (getenv("CROSSMEM_EMULATED_SLOW_STREAMS")) {
        /* It waits where the thread's own stream is, and the usual one has nothing to do. */
        ANSWERS(600, hipStreamQuery_spt(NULL));
        ANSWERS(600, hipStreamQuery((hipStream_t)2));
        ANSWERS(0, hipStreamQuery(NULL));
    }
    ANSWERS(0, hipStreamSynchronize_spt(NULL));
    ANSWERS(0, hipStreamQuery_spt(NULL));
    ANSWERS(0, hipMemcpy_spt(own, memory, 64, hipMemcpyDeviceToHost));
    HOLDS(own[3] == 2 && own[4] == 1);
    ANSWERS(0, hipMemcpyAsync_spt(memory, own, 64, hipMemcpyHostToDevice, NULL));
    ANSWERS(400, hipStreamQuery_spt(own));
    ANSWERS(0, hipPointerSetAttribute(&synchronous, 6, memory));
    ANSWERS(0, hipPointerGetAttribute(&is_synchronous, 6, memory));
    HOLDS(is_synchronous == 1);
    ANSWERS(1, hipPointerSetAttribute(&synchronous, 2, memory));
    ANSWERS(1, hipPointerSetAttribute(NULL, 6, memory));
    ANSWERS(17, hipPointerSetAttribute(&synchronous, 6, own));
    ANSWERS(1, hipMemGetHandleForAddressRange(&handle, memory, 64, 1, 0));
    HOLDS(handle == 7);

    ANSWERS(0, hipStreamCreate(&stream));
    ANSWERS(0, hipThreadExchangeStreamCaptureMode(&mode));
    HOLDS(mode == 0);
    ANSWERS(0, hipStreamBeginCapture(stream, 0));
    ANSWERS(0, hipFree(memory));
    ANSWERS(0, hipStreamEndCapture(stream, &graph));
    ANSWERS(0, hipThreadExchangeStreamCaptureMode(&mode));
    HOLDS(mode == 2);
    mode = 3;
    ANSWERS(1, hipThreadExchangeStreamCaptureMode(&mode));
    ANSWERS(1, hipThreadExchangeStreamCaptureMode(NULL));
    ANSWERS(0, hipStreamDestroy(stream));
}

static void ask_for_parts(void)
{
    int least = 7, greatest = 7;
    char *memory = NULL, byte = 0;

    ANSWERS(0, hipDeviceGetStreamPriorityRange(&least, &greatest));
    HOLDS(least == 1 && greatest == -1);
    ANSWERS(0, hipDeviceGetStreamPriorityRange(NULL, &greatest));
    ANSWERS(0, hipDeviceGetStreamPriorityRange(&least, NULL));
    ANSWERS(1, hipExtMallocWithFlags(NULL, 8, 2));
    ANSWERS(1, hipExtMallocWithFlags((void **)&memory, 16, 2));
    ANSWERS(0, hipExtMallocWithFlags((void **)&memory, 16, 1));
    ANSWERS(0, hipMemsetAsync(memory, 7, 16, NULL));
    ANSWERS(0, hipMemcpyWithStream(&byte, memory, 1, hipMemcpyDeviceToHost, NULL));
    HOLDS(byte == 7);
    ANSWERS(0, hipFree(memory));
    ANSWERS(0, hipFreeAsync(NULL, NULL));
}

static void ask_for_captures(void)
{
    hipStream_t stream = NULL;
    void *graph = NULL, *made = NULL, *nodes = &stream;
    unsigned long long number = 0, same = 0;
    size_t count = 7;
    int state = 7;

    ANSWERS(0, hipStreamCreate(&stream));
    ANSWERS(0, hipStreamGetCaptureInfo_v2(stream, &state, &number, NULL, NULL, &count));
    HOLDS(state == 0 && number == 0 && count == 7);
    ANSWERS(0, hipStreamBeginCapture(stream, 2));
    ANSWERS(0, hipStreamGetCaptureInfo_v2(stream, &state, &number, &graph, &nodes, &count));
    HOLDS(state == 1 && number != 0 && graph && !nodes && count == 0);
    ANSWERS(0, hipStreamGetCaptureInfo_v2(stream, &state, NULL, NULL, NULL, NULL));
    ANSWERS(0, hipStreamGetCaptureInfo_spt(stream, &state, &same));
    HOLDS(state == 1 && number == same);
    ANSWERS(0, hipStreamGetCaptureInfo_spt(NULL, &state, &same));
    HOLDS(state == 0);
    ANSWERS(1, hipStreamGetCaptureInfo_spt(stream, NULL, &same));
    ANSWERS(0, hipStreamEndCapture(stream, &made));
    HOLDS(made == graph);
    ANSWERS(0, hipStreamDestroy(stream));
}

static void ask_for_failures(void)
{
    int devices = 0;

    ANSWERS(1, hipMalloc(NULL, 1));
    ANSWERS(1, hipExtGetLastError());
    ANSWERS(0, hipGetDeviceCount(&devices));
    ANSWERS(0, hipExtGetLastError());
    ANSWERS(1, hipPeekAtLastError());
    ANSWERS(1, hipGetLastError());
    ANSWERS(0, hipGetLastError());
}

int main(void)
{
    ask_for_failures();
    ask_for_parts();
    ask_for_captures();
    ask_attributes();
    set_limits();
    use_pools();
    share_pools();
    find_functions();
    use_the_own_stream();
    finish();
}
