/* SPDX-License-Identifier: Apache-2.0
 *
 * What the programs here use of HIP: AMD's own headers with -DAMD_HEADERS, our words otherwise.
 */
#pragma once
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef AMD_HEADERS
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif
#include <hip/hip_runtime_api.h>
#define ROCM HIP_VERSION_MAJOR
#if ROCM == 5 && HIP_VERSION_MINOR <= 2
#define ROCM_5_2
#endif
#if ROCM < 6
#define KIND(attributes) (attributes).memoryType
#else
#define KIND(attributes) (attributes).type
#endif
#define LAZY hipIpcMemLazyEnablePeerAccess
#else
#define ROCM 7
#ifdef __cplusplus
extern "C" {
#endif
typedef int hipError_t;
typedef struct { char reserved[64]; } hipIpcMemHandle_t;
typedef struct { char reserved[64]; } hipIpcEventHandle_t;
typedef struct {
    int type, device;
    void *devicePointer, *hostPointer;
    int isManaged;
    unsigned int allocationFlags;
} hipPointerAttribute_t;
typedef struct { char bytes[1472]; } hipDeviceProp_t;
typedef void *hipStream_t, *hipEvent_t, *hipCtx_t, *hipDeviceptr_t, *hipModule_t;
typedef void (*hipStreamCallback_t)(hipStream_t, hipError_t, void *);
typedef void (*hipHostFn_t)(void *);
typedef int hipMemcpyKind, hipDeviceAttribute_t, hipMemAllocationHandleType;
enum { hipSuccess };
enum { hipStreamNonBlocking = 1 };
enum { hipMemcpyHostToHost, hipMemcpyHostToDevice, hipMemcpyDeviceToHost,
       hipMemcpyDeviceToDevice, hipMemcpyDefault };
enum { hipDeviceAttributeMaxThreadsPerBlock = 56, hipDeviceAttributePciBusId = 67,
       hipDeviceAttributeWarpSize = 87 };
enum { hipEventDisableTiming = 2, hipEventInterprocess = 4 };
#define hipEventReleaseToDevice 0x40000000
#define hipEventReleaseToSystem 0x80000000
typedef struct { int type, id; } hipMemLocation;
typedef struct { hipMemLocation location; int flags; } hipMemAccessDesc;
#ifdef ROCM_5_2
typedef struct {
    unsigned char compressionType;
    hipMemLocation location;
    int requestedHandleType, type;
    unsigned short usage;
    void *win32HandleMetaData;
} hipMemAllocationProp;
#else
typedef struct {
    int type, requestedHandleType;
    hipMemLocation location;
    void *win32HandleMetaData;
    unsigned char compressionType, gpuDirectRDMACapable;
    unsigned short usage;
} hipMemAllocationProp;
#endif
typedef void *hipMemGenericAllocationHandle_t;
enum { hipMemAllocationTypePinned = 1, hipMemHandleTypePosixFileDescriptor = 1,
       hipMemLocationTypeDevice = 1, hipMemAccessFlagsProtReadWrite = 3,
       hipMemAllocationGranularityMinimum = 0 };
hipError_t hipInit(unsigned int);
hipError_t hipMemAddressReserve(void **, size_t, size_t, void *, unsigned long long);
hipError_t hipMemAddressFree(void *, size_t);
hipError_t hipMemGetAllocationGranularity(size_t *, const hipMemAllocationProp *, int);
hipError_t hipMemCreate(hipMemGenericAllocationHandle_t *, size_t, const hipMemAllocationProp *,
                        unsigned long long);
hipError_t hipMemRelease(hipMemGenericAllocationHandle_t);
hipError_t hipMemMap(void *, size_t, size_t, hipMemGenericAllocationHandle_t, unsigned long long);
hipError_t hipMemUnmap(void *, size_t);
hipError_t hipMemSetAccess(void *, size_t, const hipMemAccessDesc *, size_t);
hipError_t hipMemGetAccess(unsigned long long *, const hipMemLocation *, void *);
hipError_t hipMemExportToShareableHandle(void *, hipMemGenericAllocationHandle_t, int,
                                         unsigned long long);
hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t *, void *, int);
hipError_t hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp *,
                                                   hipMemGenericAllocationHandle_t);
hipError_t hipRuntimeGetVersion(int *);
hipError_t hipGetDeviceCount(int *);
hipError_t hipSetDevice(int);
hipError_t hipGetDevice(int *);
hipError_t hipDeviceGetAttribute(int *, int, int);
hipError_t hipDeviceGetName(char *, int, int);
hipError_t hipDeviceGetPCIBusId(char *, int, int);
hipError_t hipDeviceGetByPCIBusId(int *, const char *);
hipError_t hipDeviceTotalMem(size_t *, int);
hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t *, int);
hipError_t hipDeviceCanAccessPeer(int *, int, int);
hipError_t hipDeviceEnablePeerAccess(int, unsigned int);
hipError_t hipDeviceDisablePeerAccess(int);
hipError_t hipDeviceGetLimit(size_t *, int);
hipError_t hipDeviceSetLimit(int, size_t);
hipError_t hipDeviceGetCacheConfig(int *);
hipError_t hipDeviceSetCacheConfig(int);
hipError_t hipDeviceGetSharedMemConfig(int *);
hipError_t hipDeviceSetSharedMemConfig(int);
hipError_t hipSetDeviceFlags(unsigned int);
hipError_t hipGetDeviceFlags(unsigned int *);
hipError_t hipGetProcAddress(const char *, void **, int, uint64_t, int *);
hipError_t hipThreadExchangeStreamCaptureMode(int *);
hipError_t hipDeviceReset(void);
hipError_t hipCtxSetCurrent(hipCtx_t);
hipError_t hipCtxGetCurrent(hipCtx_t *);
hipError_t hipCtxPushCurrent(hipCtx_t);
hipError_t hipDevicePrimaryCtxGetState(int, unsigned int *, int *);
hipError_t hipDevicePrimaryCtxRetain(hipCtx_t *, int);
hipError_t hipDevicePrimaryCtxReset(int);
hipError_t hipDevicePrimaryCtxSetFlags(int, unsigned int);
hipError_t hipDeviceSynchronize(void);
hipError_t hipCtxCreate(hipCtx_t *, unsigned int, int);
hipError_t hipCtxPopCurrent(hipCtx_t *);
hipError_t hipCtxDestroy(hipCtx_t);
hipError_t hipMalloc(void **, size_t);
hipError_t hipMallocPitch(void **, size_t *, size_t, size_t);
typedef struct { void *ptr; size_t pitch, xsize, ysize; } hipPitchedPtr;
typedef struct { size_t width, height, depth; } hipExtent;
hipError_t hipMemAllocPitch(hipDeviceptr_t *, size_t *, size_t, size_t, unsigned int);
hipError_t hipMalloc3D(hipPitchedPtr *, hipExtent);
typedef struct { size_t x, y, z; } hipPos;
typedef struct {
    void *srcArray;
    hipPos srcPos;
    hipPitchedPtr srcPtr;
    void *dstArray;
    hipPos dstPos;
    hipPitchedPtr dstPtr;
    hipExtent extent;
    hipMemcpyKind kind;
} hipMemcpy3DParms;
hipError_t hipMemcpy3D(const hipMemcpy3DParms *);
hipError_t hipMemcpy3DAsync(const hipMemcpy3DParms *, hipStream_t);
hipError_t hipMemset3D(hipPitchedPtr, int, hipExtent);
hipError_t hipMemset3DAsync(hipPitchedPtr, int, hipExtent, hipStream_t);
hipError_t hipMemset2DAsync(void *, size_t, int, size_t, size_t, hipStream_t);
hipError_t hipMallocManaged(void **, size_t, unsigned int);
hipError_t hipFree(void *);
hipError_t hipHostMalloc(void **, size_t, unsigned int);
hipError_t hipHostFree(void *);
hipError_t hipHostRegister(void *, size_t, unsigned int);
hipError_t hipStreamWriteValue32(hipStream_t, void *, uint32_t, unsigned int);
hipError_t hipStreamWriteValue64(hipStream_t, void *, uint64_t, unsigned int);
hipError_t hipStreamWaitValue32(hipStream_t, void *, uint32_t, unsigned int, uint32_t);
hipError_t hipStreamWaitValue64(hipStream_t, void *, uint64_t, unsigned int, uint64_t);
hipError_t hipHostUnregister(void *);
hipError_t hipHostGetDevicePointer(void **, void *, unsigned int);
hipError_t hipMemGetInfo(size_t *, size_t *);
hipError_t hipMemGetAddressRange(hipDeviceptr_t *, size_t *, hipDeviceptr_t);
hipError_t hipPointerGetAttributes(hipPointerAttribute_t *, const void *);
hipError_t hipPointerGetAttribute(void *, int, hipDeviceptr_t);
typedef void *hipMemPool_t;
typedef struct {
    int allocType, handleTypes;
    hipMemLocation location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned char reserved[56];
} hipMemPoolProps;
hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t *, int);
hipError_t hipDeviceGetMemPool(hipMemPool_t *, int);
hipError_t hipDeviceSetMemPool(int, hipMemPool_t);
hipError_t hipMemPoolCreate(hipMemPool_t *, const hipMemPoolProps *);
hipError_t hipMemPoolDestroy(hipMemPool_t);
hipError_t hipMemPoolTrimTo(hipMemPool_t, size_t);
hipError_t hipMemPoolGetAttribute(hipMemPool_t, int, void *);
hipError_t hipMemPoolSetAttribute(hipMemPool_t, int, void *);
hipError_t hipMemPoolSetAccess(hipMemPool_t, const hipMemAccessDesc *, size_t);
hipError_t hipMemPoolGetAccess(int *, hipMemPool_t, hipMemLocation *);
hipError_t hipMallocAsync(void **, size_t, hipStream_t);
hipError_t hipMallocFromPoolAsync(void **, size_t, hipMemPool_t, hipStream_t);
hipError_t hipFreeAsync(void *, hipStream_t);
hipError_t hipPointerSetAttribute(const void *, int, hipDeviceptr_t);
hipError_t hipMemGetHandleForAddressRange(void *, hipDeviceptr_t, size_t, int, unsigned long long);
hipError_t hipMemcpy_spt(void *, const void *, size_t, int);
hipError_t hipMemcpyAsync_spt(void *, const void *, size_t, int, hipStream_t);
hipError_t hipMemset_spt(void *, int, size_t);
hipError_t hipMemset2DAsync_spt(void *, size_t, int, size_t, size_t, hipStream_t);
hipError_t hipStreamQuery_spt(hipStream_t);
hipError_t hipStreamSynchronize_spt(hipStream_t);
hipError_t hipStreamQuery(hipStream_t);
hipError_t hipStreamBeginCapture(hipStream_t, int);
hipError_t hipStreamEndCapture(hipStream_t, void **);
hipError_t hipMemcpy(void *, const void *, size_t, int);
hipError_t hipMemcpyAsync(void *, const void *, size_t, int, hipStream_t);
hipError_t hipMemcpyHtoD(hipDeviceptr_t, void *, size_t);
hipError_t hipMemcpyDtoH(void *, hipDeviceptr_t, size_t);
hipError_t hipMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
hipError_t hipMemset(void *, int, size_t);
hipError_t hipMemsetAsync(void *, int, size_t, hipStream_t);
hipError_t hipMemset2D(void *, size_t, int, size_t, size_t);
hipError_t hipMemsetD32(hipDeviceptr_t, int, size_t);
hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *, void *);
hipError_t hipIpcOpenMemHandle(void **, hipIpcMemHandle_t, unsigned int);
hipError_t hipIpcCloseMemHandle(void *);
hipError_t hipIpcGetEventHandle(hipIpcEventHandle_t *, hipEvent_t);
hipError_t hipIpcOpenEventHandle(hipEvent_t *, hipIpcEventHandle_t);
hipError_t hipStreamCreate(hipStream_t *);
hipError_t hipStreamCreateWithFlags(hipStream_t *, unsigned int);
hipError_t hipStreamDestroy(hipStream_t);
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned int);
hipError_t hipStreamSynchronize(hipStream_t);
hipError_t hipStreamQuery(hipStream_t);
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned int);
hipError_t hipStreamAddCallback(hipStream_t, hipStreamCallback_t, void *, unsigned int);
hipError_t hipLaunchHostFunc(hipStream_t, hipHostFn_t, void *);
hipError_t hipEventCreateWithFlags(hipEvent_t *, unsigned int);
hipError_t hipEventRecord(hipEvent_t, hipStream_t);
hipError_t hipEventQuery(hipEvent_t);
hipError_t hipEventSynchronize(hipEvent_t);
hipError_t hipEventElapsedTime(float *, hipEvent_t, hipEvent_t);
hipError_t hipEventDestroy(hipEvent_t);
hipError_t hipModuleUnload(hipModule_t);
hipError_t hipGetLastError(void);
hipError_t hipPeekAtLastError(void);
hipError_t hipExtGetLastError(void);
typedef struct { unsigned char reserved[64]; } hipMemPoolPtrExportData;
hipError_t hipMemPoolExportToShareableHandle(void *, hipMemPool_t, int, unsigned int);
hipError_t hipMemPoolImportFromShareableHandle(hipMemPool_t *, void *, int, unsigned int);
hipError_t hipMemPoolExportPointer(hipMemPoolPtrExportData *, void *);
hipError_t hipMemPoolImportPointer(void **, hipMemPool_t, hipMemPoolPtrExportData *);
hipError_t hipStreamGetCaptureInfo_spt(hipStream_t, int *, unsigned long long *);
hipError_t hipStreamGetCaptureInfo_v2(hipStream_t, int *, unsigned long long *, void **, void **,
                                      size_t *);
hipError_t hipExtMallocWithFlags(void **, size_t, unsigned int);
hipError_t hipDeviceGetStreamPriorityRange(int *, int *);
hipError_t hipMemcpyWithStream(void *, const void *, size_t, int, hipStream_t);
const char *hipGetErrorName(hipError_t);
const char *hipGetErrorString(hipError_t);
#ifdef __cplusplus
}
template <typename T> hipError_t hipMalloc(T **pointer, size_t size)
{
    return hipMalloc((void **)pointer, size);
}
template <typename T> hipError_t hipHostMalloc(T **pointer, size_t size, unsigned int flags = 0)
{
    return hipHostMalloc((void **)pointer, size, flags);
}
template <typename T> hipError_t hipMallocManaged(T **pointer, size_t size, unsigned int flags = 1)
{
    return hipMallocManaged((void **)pointer, size, flags);
}
#endif
#define hipGetDeviceProperties hipGetDevicePropertiesR0600
#define KIND(attributes) (attributes).type
#define LAZY 1
#endif

static int failures;

/* Every call has to answer a certain code. */
#define ANSWERS(code, call) \
    do { \
        int found_ = (int)(call); \
        if (found_ != (code)) { \
            printf("%s:%d: %s answers %d, not %d\n", __FILE__, __LINE__, #call, found_, (int)(code)); \
            failures++; \
        } \
    } while (0)
#define HOLDS(what) ANSWERS(1, !!(what))

/* The edition of ROCm 5 does what its sources do, and the usual one what documents say. */
static inline int is_rocm_5(void)
{
    int version = 0;
    ANSWERS(0, hipRuntimeGetVersion(&version));
    return version / 10000000 == 5;
}

/* Starts a process, which must not have called HIP before. */
static inline pid_t start(void)
{
    fflush(stdout);
    return fork();
}

static inline void finish(void)
{
    fflush(stdout);
    exit(failures ? 1 : 0);
}

static inline void wait_for(pid_t pid)
{
    int status = 0;
    HOLDS(waitpid(pid, &status, 0) == pid);
    HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline void send_bytes(int descriptor, const void *bytes, size_t size)
{
    HOLDS(write(descriptor, bytes, size) == (ssize_t)size);
}

static inline void receive_bytes(int descriptor, void *bytes, size_t size)
{
    HOLDS(read(descriptor, bytes, size) == (ssize_t)size);
}
