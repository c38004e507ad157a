/* SPDX-License-Identifier: Apache-2.0
 *
 * One process and its devices: what they say of themselves, memory of all kinds, copies, streams.
 */
#include "hip.h"

static int called;

static void callback(hipStream_t stream, hipError_t status, void *data)
{
    (void)stream;
    HOLDS(status == 0 && data == &called);
    called++;
}

static void ask_devices(void)
{
    hipDeviceProp_t properties;
    char name[64] = "", bus[32] = "";
    int value = 0, device = 1, can = 1;
    size_t total = 0, available = 0;

    memset(&properties, 0xFF, sizeof properties);
    ANSWERS(0, hipGetDeviceProperties(&properties, 0));
    ANSWERS(101, hipGetDeviceProperties(&properties, 2));
    ANSWERS(1, hipGetDeviceProperties(NULL, 0));
    ANSWERS(0, hipDeviceGetName(name, sizeof name, 0));
    /* The name is what every edition of the structure begins with. */
    HOLDS(name[0] && !strcmp(name, (const char *)&properties));
    ANSWERS(0, hipDeviceGetName(name, 4, 0));
    HOLDS(strlen(name) == 3);
    ANSWERS(1, hipDeviceGetName(NULL, 4, 0));
    ANSWERS(0, hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, 0));
    HOLDS(value == 64);
    ANSWERS(0, hipDeviceGetAttribute(&value, hipDeviceAttributeMaxThreadsPerBlock, 0));
    HOLDS(value == 1024);
    ANSWERS(1, hipDeviceGetAttribute(&value, (hipDeviceAttribute_t)9998, 0));
    ANSWERS(0, hipDeviceTotalMem(&total, 0));
    ANSWERS(0, hipMemGetInfo(&available, &total));
    HOLDS(total > 0 && available <= total);
    ANSWERS(0, hipDeviceGetPCIBusId(bus, sizeof bus, 1));
    ANSWERS(1, hipDeviceGetPCIBusId(bus, 5, 1));
    ANSWERS(0, hipDeviceGetPCIBusId(bus, 13, 1));
    ANSWERS(0, hipDeviceGetByPCIBusId(&device, bus));
    HOLDS(device == 1);
    ANSWERS(1, hipDeviceGetByPCIBusId(&device, "nonsense"));
    ANSWERS(0, hipDeviceCanAccessPeer(&can, 0, 0));
    HOLDS(can == 0);
    ANSWERS(0, hipDeviceCanAccessPeer(&can, 0, 1));
    HOLDS(can == 1);
    ANSWERS(1, hipDeviceCanAccessPeer(NULL, 0, 1));
    ANSWERS(1, hipDeviceEnablePeerAccess(1, 1));
    ANSWERS(0, hipDeviceEnablePeerAccess(1, 0));
    ANSWERS(704, hipDeviceEnablePeerAccess(1, 0));
    ANSWERS(0, hipDeviceDisablePeerAccess(1));
    ANSWERS(705, hipDeviceDisablePeerAccess(1));
    ANSWERS(101, hipSetDevice(2));
    ANSWERS(101, hipSetDevice(-1));
}

static void use_memory(void)
{
    void *memory = NULL, *plane = NULL, *pinned = NULL, *found = NULL;
    char *managed = NULL, rows[4][8], own[100];
    size_t pitch = 0, size = 0;
    hipDeviceptr_t base = NULL;
    hipPointerAttribute_t attributes;

    ANSWERS(1, hipMalloc(NULL, 8));
    ANSWERS(0, hipMalloc(&memory, 0));
    HOLDS(!memory);
    ANSWERS(2, hipMalloc(&memory, (size_t)1 << 60));
    ANSWERS(0, hipMalloc(&memory, 1000));
    ANSWERS(0, hipMemGetAddressRange(&base, NULL, (char *)memory + 999));
    ANSWERS(0, hipMemGetAddressRange(NULL, &size, memory));
    HOLDS(base == memory && size == 1000);
    ANSWERS(500, hipMemGetAddressRange(&base, &size, NULL));
    ANSWERS(0, hipPointerGetAttributes(&attributes, memory));
#ifdef AMD_HEADERS
    HOLDS(KIND(attributes) == hipMemoryTypeDevice);
#else
    HOLDS(KIND(attributes) == 2 && !attributes.isManaged);
#endif
    ANSWERS(1, hipPointerGetAttributes(NULL, memory));

    memset(rows, 7, sizeof rows);
    ANSWERS(0, hipMallocPitch(&plane, &pitch, 8, 4));
    HOLDS(pitch >= 8);
    ANSWERS(0, hipMemcpy2D(plane, pitch, rows, 8, 8, 4, hipMemcpyHostToDevice));
    ANSWERS(0, hipMemset2D(plane, pitch, 9, 4, 4));
    ANSWERS(0, hipMemcpy2D(rows, 8, plane, pitch, 8, 4, hipMemcpyDeviceToHost));
    HOLDS(rows[3][3] == 9 && rows[3][4] == 7);
    ANSWERS(12, hipMemcpy2D(plane, pitch, rows, 4, 8, 4, hipMemcpyHostToDevice));
    ANSWERS(0, hipMemset(memory, 5, 1000));
    ANSWERS(0, hipMemsetD32(memory, 0x04030201, 3));
    ANSWERS(0, hipMemcpyDtoH(own, memory, 13));
    HOLDS(!memcmp(own, "\1\2\3\4\1\2\3\4\1\2\3\4\5", 13));
    ANSWERS(0, hipMemcpyDtoH(own, memory, sizeof own));
    HOLDS(own[99] == 5);
    ANSWERS(21, hipMemcpy(own, memory, 1, (hipMemcpyKind)77));
    ANSWERS(1, hipMemcpy(own, NULL, 1, hipMemcpyDeviceToHost));

    ANSWERS(2, hipHostMalloc(&pinned, (size_t)1 << 45, 0));
    ANSWERS(0, hipHostMalloc(&pinned, 64, 0));
    memset(pinned, 1, 64);
    ANSWERS(0, hipHostGetDevicePointer(&found, pinned, 0));
    HOLDS(found == pinned);
    HOLDS((uintptr_t)pinned % 4096 == 0);
    ANSWERS(0, hipHostFree(pinned));
    ANSWERS(1, hipHostFree(pinned));
    ANSWERS(0, hipHostRegister(own, sizeof own, 0));
    ANSWERS(712, hipHostRegister(own, sizeof own, 0));
    ANSWERS(0, hipHostUnregister(own));
    ANSWERS(713, hipHostUnregister(own));
    ANSWERS(0, hipMallocManaged((void **)&managed, 64, 1));
    managed[63] = 3;
    ANSWERS(0, hipPointerGetAttributes(&attributes, managed));
    HOLDS(attributes.isManaged);
    ANSWERS(0, hipFree(managed));

    ANSWERS(0, hipFree(plane));
    ANSWERS(0, hipFree(memory));
    ANSWERS(1, hipFree(memory));
    ANSWERS(1, hipFree((void *)-1));
    ANSWERS(0, hipFree(NULL));
    ANSWERS(0, hipMalloc(&memory, 1000));
    ANSWERS(0, hipDeviceReset());
    ANSWERS(1, hipFree(memory));
}

static void use_streams(void)
{
    hipStream_t stream = NULL;
    hipCtx_t context = NULL, popped = NULL;

    ANSWERS(1, hipStreamCreate(NULL));
    ANSWERS(0, hipStreamCreate(&stream));
    ANSWERS(0, hipStreamAddCallback(stream, callback, &called, 0));
    ANSWERS(1, hipStreamAddCallback(stream, NULL, &called, 0));
    ANSWERS(0, hipStreamSynchronize(stream));
    HOLDS(called == 1);
    ANSWERS(0, hipStreamDestroy(stream));
    ANSWERS(400, hipStreamDestroy(stream));
    ANSWERS(0, hipCtxCreate(&context, 0, 0));
    ANSWERS(0, hipCtxPopCurrent(&popped));
    HOLDS(context == popped);
    ANSWERS(0, hipCtxDestroy(context));
    ANSWERS(is_rocm_5() ? 0 : 201, hipCtxDestroy(context));
    /* Kernels cannot run. */
    ANSWERS(801, hipModuleUnload(NULL));
    ANSWERS(801, hipModuleUnload(NULL));
    ANSWERS(801, hipGetLastError());
}

int main(void)
{
    ask_devices();
    use_memory();
    use_streams();
    HOLDS(!strcmp(hipGetErrorName((hipError_t)17), "hipErrorInvalidDevicePointer"));
    HOLDS(!strcmp(hipGetErrorName((hipError_t)4711), "hipErrorUnknown"));
#if ROCM > 5
    HOLDS(!strcmp(hipGetErrorString((hipError_t)17), "invalid device pointer"));
#endif
    finish();
}
