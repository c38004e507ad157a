/* SPDX-License-Identifier: Apache-2.0
 *
 * What programs do beside sharing: pinned memory as a device's, planes of all sizes, contexts, resets.
 */
#include "hip.h"

static void use_pinned_memory(void)
{
    static char own[4096];
    char *pinned = NULL, *found = NULL, *memory = NULL;

    ANSWERS(0, hipMalloc((void **)&memory, 4096));
    ANSWERS(0, hipHostMalloc((void **)&pinned, 4096, 0));
    ANSWERS(0, hipHostGetDevicePointer((void **)&found, pinned, 0));
    ANSWERS(0, hipMemset(found, 7, 4096));
    ANSWERS(0, hipDeviceSynchronize());
    HOLDS(pinned[0] == 7 && pinned[4095] == 7);
    ANSWERS(1, hipMemset(found + 1, 7, 4096));
    ANSWERS(0, hipMemset(memory, 3, 4096));
    ANSWERS(0, hipMemcpy(found, memory, 8, hipMemcpyDeviceToDevice));
    ANSWERS(0, hipMemcpy(memory + 8, found + 8, 8, hipMemcpyDeviceToDevice));
    ANSWERS(0, hipMemcpy(own, found, 16, hipMemcpyDeviceToHost));
    HOLDS(own[7] == 3 && own[8] == 7);
    ANSWERS(0, hipMemcpy(own, memory, 16, hipMemcpyDeviceToHost));
    HOLDS(own[7] == 3 && own[8] == 7);

    ANSWERS(1, hipMemset(own, 9, 8));
    ANSWERS(1, hipMemcpy(own, memory, 8, hipMemcpyDeviceToDevice));
    ANSWERS(0, hipHostRegister(own, sizeof own, 0));
    ANSWERS(0, hipHostGetDevicePointer((void **)&found, own, 0));
    ANSWERS(0, hipMemset(found, 9, 8));
    ANSWERS(0, hipMemcpy(found + 8, memory, 8, hipMemcpyDeviceToDevice));
    ANSWERS(0, hipDeviceSynchronize());
    HOLDS(own[7] == 9 && own[8] == 3);
    ANSWERS(0, hipHostUnregister(own));
    ANSWERS(0, hipHostFree(pinned));
    ANSWERS(0, hipFree(memory));
}

static void use_planes(void)
{
    const size_t all = (size_t)-1, half = all / 2 + 1;
    static char rows[4][8];
    size_t pitch = 77, before = 0, after = 0, total = 0;
    void *plane = &pitch;
    hipPitchedPtr cube;
    hipExtent extent = {256, (size_t)1 << 28, (size_t)1 << 28};

    memset(&cube, 0, sizeof cube);
    ANSWERS(0, hipMemGetInfo(&before, &total));
    ANSWERS(0, hipMallocPitch(&plane, &pitch, 0, 3));
    HOLDS(!plane && pitch == 77);
    /* Products of which C's type would leave little or nothing. */
    ANSWERS(2, hipMallocPitch(&plane, &pitch, 256, (size_t)1 << 56));
    ANSWERS(2, hipMallocPitch(&plane, &pitch, half, 2));
    ANSWERS(1, hipMallocPitch(&plane, &pitch, all, 1));
    ANSWERS(2, hipMalloc3D(&cube, extent));
    ANSWERS(1, hipMalloc3D(NULL, extent));
    ANSWERS(1, hipMemAllocPitch(&plane, &pitch, 0, 3, 4));
    ANSWERS(1, hipMemAllocPitch(&plane, &pitch, 3, 3, 5));
    ANSWERS(0, hipMemGetInfo(&after, &total));
    HOLDS(before == after);

    ANSWERS(0, hipMemAllocPitch(&plane, &pitch, 8, 4, 4));
    ANSWERS(0, hipMemset2D(plane, pitch, 5, 8, 4));
    ANSWERS(1, hipMemset2D(plane, pitch, 6, 8, 5));
    ANSWERS(1, hipMemset2D(plane, pitch, 6, 8, half / 128 + 1));
    ANSWERS(1, hipMemset2D(plane, half, 6, half, 2));
    ANSWERS(1, hipMemset2D(plane, half, 6, 8, 3));
    ANSWERS(1, hipMemset2DAsync(plane, half, 6, half, all, NULL));
    ANSWERS(1, hipMemcpy2D(plane, half, rows, half, half, 2, hipMemcpyHostToDevice));
    ANSWERS(1, hipMemcpy2D(plane, pitch, rows, 8, 8, all, hipMemcpyHostToDevice));
    ANSWERS(12, hipMemcpy2D(plane, pitch, rows, 8, 9, 4, hipMemcpyHostToDevice));
    ANSWERS(0, hipMemcpy2D(rows, 8, plane, pitch, 8, 4, hipMemcpyDeviceToHost));
    HOLDS(rows[0][0] == 5 && rows[3][7] == 5);
    ANSWERS(0, hipFree(plane));

    extent.height = extent.depth = 3;
    ANSWERS(0, hipMalloc3D(&cube, extent));
    HOLDS(cube.ptr && cube.pitch >= 256 && cube.xsize == 256 && cube.ysize == 3);
    ANSWERS(0, hipFree(cube.ptr));
    extent.depth = 0;
    ANSWERS(0, hipMalloc3D(&cube, extent));
    HOLDS(!cube.ptr && cube.pitch == 0);
    ANSWERS(0, hipMemGetInfo(&after, &total));
    HOLDS(before == after);
}

static void use_boxes(void)
{
    static char own[3][2][4];
    hipExtent extent = {4, 2, 3}, none = {4, 0, 3};
    hipMemcpy3DParms copy;
    hipPitchedPtr box;

    memset(&copy, 0, sizeof copy);
    ANSWERS(0, hipMalloc3D(&box, extent));
    ANSWERS(0, hipMemset3D(box, 5, extent));
    ANSWERS(0, hipMemset3DAsync(box, 6, none, NULL));
    ANSWERS(1, hipMemset3DAsync(box, 6, (extent.height = 3, extent), NULL));
    extent.height = 2;
    copy.srcPtr = box;
    copy.dstPtr.ptr = own;
    copy.dstPtr.pitch = copy.dstPtr.xsize = 4;
    copy.dstPtr.ysize = 2;
    copy.extent = extent;
    copy.kind = hipMemcpyDeviceToHost;
    ANSWERS(0, hipMemcpy3D(&copy));
    HOLDS(own[0][0][0] == 5 && own[2][1][3] == 5);

    /* One byte, from the host's beginning to the box's end. */
    own[0][0][0] = 7;
    copy.srcPtr = copy.dstPtr;
    copy.dstPtr = box;
    copy.dstPos.x = 3;
    copy.dstPos.y = 1;
    copy.dstPos.z = 2;
    copy.extent.width = copy.extent.height = copy.extent.depth = 1;
    copy.kind = hipMemcpyHostToDevice;
    ANSWERS(0, hipMemcpy3DAsync(&copy, NULL));
    ANSWERS(0, hipDeviceSynchronize());
    ANSWERS(0, hipMemcpy2D(own, 4, box.ptr, box.pitch, 4, 6, hipMemcpyDeviceToHost));
    HOLDS(own[2][1][3] == 7 && own[2][1][2] == 5 && own[0][0][0] == 5);
    copy.dstPos.y = 2;
    ANSWERS(1, hipMemcpy3D(&copy));
    copy.dstPtr.xsize = copy.dstPtr.pitch + 1;
    ANSWERS(12, hipMemcpy3D(&copy));
    ANSWERS(1, hipMemcpy3D(NULL));
    ANSWERS(0, hipFree(box.ptr));
}

static void use_devices_as_contexts(void)
{
    hipCtx_t context = NULL, found = NULL;
    int device = 7;

    ANSWERS(0, hipCtxCreate(&context, 0, 1));
    ANSWERS(0, hipGetDevice(&device));
    HOLDS(device == 0);
    ANSWERS(0, hipCtxSetCurrent(NULL));
    ANSWERS(201, hipCtxPopCurrent(&found));
    ANSWERS(0, hipCtxPushCurrent(context));
    ANSWERS(0, hipCtxPopCurrent(&found));
    HOLDS(found == context);
    ANSWERS(0, hipGetDevice(&device));
    HOLDS(device == 1);
    ANSWERS(0, hipDevicePrimaryCtxReset(7));
    ANSWERS(0, hipSetDevice(0));
}

static void use_contexts(void)
{
    hipCtx_t context = NULL, found = NULL, own = NULL;
    unsigned int flags = 7;
    int device = 7, active = 7;

    ANSWERS(201, hipCtxPopCurrent(&found));
    ANSWERS(0, hipCtxSetCurrent(NULL));
    ANSWERS(0, hipCtxGetCurrent(&own));
    HOLDS(own != NULL);
    ANSWERS(1, hipCtxCreate(&context, 0, 2));
    ANSWERS(0, hipCtxCreate(&context, 0, 1));
    ANSWERS(0, hipGetDevice(&device));
    HOLDS(device == 1);
    ANSWERS(0, hipCtxSetCurrent(NULL));
    ANSWERS(0, hipGetDevice(&device));
    HOLDS(device == 0);
    ANSWERS(201, hipCtxPopCurrent(NULL));
    ANSWERS(0, hipCtxSetCurrent(context));
    ANSWERS(0, hipCtxGetCurrent(&found));
    HOLDS(found == context);
    ANSWERS(0, hipCtxPopCurrent(&found));
    HOLDS(found == context);
    ANSWERS(0, hipCtxGetCurrent(&found));
    HOLDS(found == own);
    ANSWERS(0, hipCtxPushCurrent(context));
    ANSWERS(0, hipCtxPopCurrent(NULL));
    ANSWERS(201, hipCtxPushCurrent(NULL));
    ANSWERS(0, hipCtxDestroy(context));
    ANSWERS(201, hipCtxSetCurrent(context));
    ANSWERS(1, hipCtxDestroy(NULL));

    ANSWERS(0, hipDevicePrimaryCtxRetain(&found, 0));
    HOLDS(found == own);
    ANSWERS(0, hipDevicePrimaryCtxGetState(0, &flags, NULL));
    ANSWERS(0, hipDevicePrimaryCtxGetState(0, NULL, &active));
    HOLDS(flags == 0 && active == 1);
    ANSWERS(216, hipDevicePrimaryCtxSetFlags(0, 0));
    ANSWERS(101, hipDevicePrimaryCtxSetFlags(2, 0));
}

static void reset(void)
{
    void *memory = NULL, *pinned = NULL;
    hipStream_t stream = NULL;
    hipEvent_t event = NULL;

    for (int i = 0; i < 2; i++) {
        ANSWERS(0, hipMalloc(&memory, 1000));
        ANSWERS(0, hipHostMalloc(&pinned, 1000, 0));
        ANSWERS(0, hipStreamCreate(&stream));
        ANSWERS(0, hipEventCreateWithFlags(&event, 0));
        ANSWERS(0, hipEventRecord(event, stream));
        ANSWERS(0, i ? hipDeviceReset() : hipDevicePrimaryCtxReset(0));
        ANSWERS(1, hipFree(memory));
        ANSWERS(1, hipHostFree(pinned));
        ANSWERS(400, hipStreamSynchronize(stream));
        ANSWERS(400, hipEventSynchronize(event));
    }
    ANSWERS(0, hipMalloc(&memory, 1000));
    ANSWERS(0, hipFree(memory));
}

/* What was allocated next to it does not make an allocation longer. */
static void use_neighbours(void)
{
    char bytes[8] = {0}, *first = NULL, *second = NULL;

    ANSWERS(0, hipMalloc((void **)&first, 1 << 20));
    ANSWERS(0, hipMalloc((void **)&second, 1 << 20));
    char *last = first + (1 << 20) - 4;
    HOLDS(second == last + 4);
    ANSWERS(1, hipMemcpy(bytes, last, 8, hipMemcpyDeviceToHost));
    ANSWERS(1, hipMemcpyAsync(last, bytes, 8, hipMemcpyHostToDevice, NULL));
    ANSWERS(1, hipMemset(last, 1, 8));
    ANSWERS(1, hipMemcpy(second, last, 8, hipMemcpyDeviceToDevice));
    ANSWERS(0, hipMemcpy(bytes, last, 4, hipMemcpyDeviceToHost));
    ANSWERS(0, hipFree(first));
    ANSWERS(0, hipFree(second));
}

static void use_no_event(void)
{
    hipEvent_t event = NULL;
    hipIpcEventHandle_t handle;
    float time = 0;

    ANSWERS(400, hipEventRecord(NULL, NULL));
    ANSWERS(400, hipEventQuery(NULL));
    ANSWERS(400, hipEventSynchronize(NULL));
    ANSWERS(400, hipEventElapsedTime(&time, NULL, NULL));
    ANSWERS(400, hipEventDestroy(NULL));
    ANSWERS(400, hipStreamWaitEvent(NULL, NULL, 0));
    ANSWERS(1, hipIpcGetEventHandle(&handle, NULL));
    ANSWERS(1, hipEventCreateWithFlags(&event, hipEventReleaseToDevice | hipEventReleaseToSystem));
    ANSWERS(0, hipEventCreateWithFlags(&event, hipEventReleaseToDevice));
    ANSWERS(1, hipStreamWaitEvent(NULL, event, 2));
    ANSWERS(0, hipStreamWaitEvent(NULL, event, 0));
    ANSWERS(0, hipEventDestroy(event));
}

int main(void)
{
    use_neighbours();
    use_no_event();
    use_pinned_memory();
    use_planes();
    use_boxes();
    if (is_rocm_5()) {
        use_devices_as_contexts();
    } else {
        use_contexts();
        reset();
    }
    finish();
}
