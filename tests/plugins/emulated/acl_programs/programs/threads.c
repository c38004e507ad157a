/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads with contexts of their own, work in streams, and children that are forked too late.
 */
#include <pthread.h>
#include <sys/wait.h>

#include "program.h"

enum { NBYTES = 2 << 20, THREADS = 4, TURNS = 20 };

static void *work(void *argument)
{
    int32_t mine = (int32_t)(intptr_t)argument % 2, device = -1;
    aclrtStream stream = NULL;
    void *address = NULL;
    char text[32];

    CHECK(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
    OK(aclrtSetDevice(mine));
    OK(aclrtCreateStream(&stream));
    snprintf(text, sizeof text, "thread %d", (int)(intptr_t)argument);
    for (int turn = 0; turn < TURNS; turn++) {
        OK(aclrtGetDevice(&device));
        TRUE(device == mine);
        OK(aclrtMalloc(&address, NBYTES, ACL_MEM_MALLOC_NORMAL_ONLY));
        OK(aclrtMemcpyAsync(address, NBYTES, text, sizeof text, ACL_MEMCPY_HOST_TO_DEVICE, stream));
        OK(aclrtSynchronizeStream(stream));
        TRUE(has_text(address, text));
        OK(aclrtFree(address));
    }
    OK(aclrtDestroyStream(stream));
    OK(aclrtResetDevice(mine));
    return NULL;
}

static void count_up(void *argument) { ++*(int *)argument; }

static void failure_modes(void)
{
    aclrtStream stream = NULL;
    aclrtStreamAttrValue value;

    OK(aclrtCreateStream(&stream));
    OK(aclrtGetStreamAttribute(stream, ACL_STREAM_ATTR_FAILURE_MODE, &value));
    TRUE(value.failureMode == 0);
    OK(aclrtSetStreamFailureMode(stream, 1));
    OK(aclrtGetStreamAttribute(stream, ACL_STREAM_ATTR_FAILURE_MODE, &value));
    TRUE(value.failureMode == 1);
    OK(aclrtGetStreamAttribute(NULL, ACL_STREAM_ATTR_FAILURE_MODE, &value));
    TRUE(value.failureMode == 0);
    CHECK(aclrtGetStreamAttribute(stream, (aclrtStreamAttr)2, &value),
          ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    CHECK(aclrtGetStreamAttribute(stream, ACL_STREAM_ATTR_FAILURE_MODE, NULL),
          ACL_ERROR_INVALID_PARAM);
    OK(aclrtDestroyStream(stream));
}

static void streams_and_events(void)
{
    aclrtContext context = NULL, mine = NULL;
    aclrtStream first = NULL, second = NULL;
    aclrtEvent start = NULL, end = NULL, shared = NULL;
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_NOT_READY;
    aclrtIpcEventHandle handle;
    void *address = NULL, *host = NULL;
    float passed = -1;
    int counter = 0;

    OK(aclrtGetCurrentContext(&mine));
    OK(aclrtCreateContext(&context, 1));
    OK(aclrtSetCurrentContext(mine));
    OK(aclrtDestroyContext(context));
    OK(aclrtCreateStream(&first));
    OK(aclrtCreateStreamWithConfig(&second, 1, 0));
    OK(aclrtCreateEvent(&start));
    OK(aclrtCreateEventWithFlag(&end, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE));
    OK(aclrtMalloc(&address, NBYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    OK(aclrtMallocHost(&host, 64));
    OK(aclrtRecordEvent(start, first));
    OK(aclrtMemsetAsync(address, NBYTES, 'a', 64, first));
    OK(aclrtLaunchHostFunc(first, count_up, &counter));
    OK(aclrtRecordEvent(end, first));
    OK(aclrtStreamWaitEvent(second, end));
    OK(aclrtMemcpyAsync(host, 64, address, 64, ACL_MEMCPY_DEVICE_TO_HOST, second));
    OK(aclrtSynchronizeStream(second));
    OK(aclrtQueryEventStatus(end, &status));
    OK(aclrtEventElapsedTime(&passed, start, end));
    TRUE(status == ACL_EVENT_RECORDED_STATUS_COMPLETE && passed >= 0 && counter == 1);
    TRUE(((char *)host)[0] == 'a' && ((char *)host)[63] == 'a');
    OK(aclrtCreateEventExWithFlag(&shared, ACL_EVENT_IPC));
    memset(&handle, 0, sizeof handle);
    OK(aclrtIpcGetEventHandle(shared, &handle));
    CHECK(aclrtIpcOpenEventHandle(handle, &end), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    OK(aclrtFreeHost(host));
    OK(aclrtFree(address));
    OK(aclrtDestroyEvent(start));
    OK(aclrtDestroyEvent(end));
    OK(aclrtDestroyEvent(shared));
    OK(aclrtDestroyStream(first));
    OK(aclrtDestroyStream(second));
}

static void batches(void)
{
    char data[2][8] = {"first", "second"}, back[2][8] = {"", ""};
    void *address = NULL, *targets[2], *sources[2] = {data[0], data[1]};
    size_t rooms[2] = {8, 8}, sizes[2] = {8, 8}, index = 0, fail = 7;
    aclrtMemcpyBatchAttr attribute;

    memset(&attribute, 0, sizeof attribute);
    attribute.dstLoc.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    OK(aclrtMalloc(&address, NBYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    targets[0] = (char *)address + 4096;
    targets[1] = address;
    OK(aclrtMemcpyBatch(targets, rooms, sources, sizes, 2, &attribute, &index, 1, &fail));
    TRUE(fail == SIZE_MAX);
    fail = 7;
    attribute.srcLoc = attribute.dstLoc;
    attribute.dstLoc.type = ACL_MEM_LOCATION_TYPE_HOST;
    sources[0] = back[0];
    sources[1] = back[1];
    OK(aclrtMemcpyBatchAsync(sources, rooms, targets, sizes, 2, &attribute, &index, 1, &fail,
                             NULL));
    OK(aclrtSynchronizeStream(NULL));
    TRUE(fail == SIZE_MAX && !memcmp(data, back, sizeof data));
    sources[1] = (char *)address + 8192;
    CHECK(aclrtMemcpyBatch(sources, rooms, targets, sizes, 2, &attribute, &index, 1, &fail),
          ACL_ERROR_RT_PARAM_INVALID);
    TRUE(fail == 1);
    sources[1] = back[1];
    rooms[1] = 4;
    CHECK(aclrtMemcpyBatch(sources, rooms, targets, sizes, 2, &attribute, &index, 1, &fail),
          ACL_ERROR_INVALID_PARAM);
    TRUE(fail == SIZE_MAX);
    attribute.rsv[15] = 1;
    CHECK(aclrtMemcpyBatchV2(sources, sizes, targets, sizes, 2, &attribute, &index, 1),
          ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMemcpyBatch(NULL, rooms, targets, sizes, 2, &attribute, &index, 1, &fail),
          ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMemcpyBatchV2(sources, rooms, targets, sizes, 0, &attribute, &index, 1),
          ACL_ERROR_INVALID_PARAM);
    OK(aclrtFree(address));
}

static void without_devices(void)
{
    char data[8] = "";
    aclDataBuffer *buffer = aclCreateDataBuffer(data, sizeof data);

    TRUE(aclGetDataBufferAddr(buffer) == data && aclGetDataBufferSizeV2(buffer) == sizeof data);
    OK(aclUpdateDataBuffer(buffer, data + 1, 3));
    TRUE(aclGetDataBufferAddr(buffer) == data + 1 && aclGetDataBufferSizeV2(buffer) == 3);
    OK(aclDestroyDataBuffer(buffer));
    CHECK(aclDestroyDataBuffer(NULL), ACL_ERROR_INVALID_PARAM);
    TRUE(aclDataTypeSize(ACL_FLOAT16) == 2 && aclDataTypeSize(ACL_COMPLEX128) == 16);
    TRUE(aclDataTypeSize(ACL_STRING) == 0 && aclDataTypeSize(ACL_DT_UNDEFINED) == 0);
    TRUE(aclFloat16ToFloat(0x3C00) == 1.0f && aclFloatToFloat16(-2.5f) == 0xC100);
    for (uint32_t bits = 0; bits < 0x10000; bits++)
        if ((bits & 0x7C00) != 0x7C00 || !(bits & 0x3FF))
            TRUE(aclFloatToFloat16(aclFloat16ToFloat((aclFloat16)bits)) == bits);
    TRUE(aclFloatToFloat16(65520.0f) == 0x7C00 && aclFloatToFloat16(65519.0f) == 0x7BFF);
    TRUE(aclFloatToFloat16(1.0f / (1 << 25)) == 0 && aclFloatToFloat16(3.0f / (1 << 25)) == 2);
    aclAppLog(ACL_ERROR, __func__, __FILE__, __LINE__, "a log with %d number", 1);
}

int main(void)
{
    pthread_t threads[THREADS];
    int status = 0;
    int32_t device = -1;

    without_devices();
    OK(aclrtSetDevice(0)); /* before it is initialized, which the vendor's runtime allows */
    OK(aclInit(NULL));
    for (intptr_t i = 0; i < THREADS; i++)
        TRUE(!pthread_create(&threads[i], NULL, work, (void *)i));
    for (int i = 0; i < THREADS; i++)
        TRUE(!pthread_join(threads[i], NULL));
    OK(aclrtGetDevice(&device));
    TRUE(!device);
    failure_modes();
    streams_and_events();
    batches();
    pid_t child = fork();
    if (!child) {
        void *address = NULL;
        CHECK(aclrtMalloc(&address, NBYTES, ACL_MEM_MALLOC_HUGE_FIRST),
              ACL_ERROR_RT_CONTEXT_NULL);
        CHECK(aclrtSetDevice(0), ACL_ERROR_RT_CONTEXT_NULL);
        _exit(0);
    }
    waitpid(child, &status, 0);
    TRUE(WIFEXITED(status) && !WEXITSTATUS(status));
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
    puts("threaded");
    return 0;
}
