/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of HIP that are emulated. The last section of this file lists functions that are
 * not emulated, and whose result is not an error code. The functions that the emulation refuses
 * with an error code are only in symbols.txt.
 */

/* Library and errors */
hipError_t hipInit(unsigned int flags);
hipError_t hipDriverGetVersion(int *version);
hipError_t hipRuntimeGetVersion(int *version);
hipError_t hipGetLastError(void);
hipError_t hipPeekAtLastError(void);
hipError_t hipExtGetLastError(void);
const char *hipGetErrorName(hipError_t error);
const char *hipGetErrorString(hipError_t error);
hipError_t hipDrvGetErrorName(hipError_t error, const char **text);
hipError_t hipDrvGetErrorString(hipError_t error, const char **text);

/* Devices */
hipError_t hipGetDeviceCount(int *count);
hipError_t hipGetDevice(int *device);
hipError_t hipSetDevice(int device);
hipError_t hipDeviceGet(int *device, int ordinal);
hipError_t hipDeviceGetAttribute(int *value, int attribute, int device);
hipError_t hipDeviceGetName(char *name, int len, int device);
hipError_t hipDeviceGetUuid(hipUUID *uuid, int device);
hipError_t hipDeviceTotalMem(size_t *bytes, int device);
hipError_t hipDeviceComputeCapability(int *major, int *minor, int device);
hipError_t hipDeviceGetPCIBusId(char *text, int len, int device);
hipError_t hipDeviceGetByPCIBusId(int *device, const char *text);
hipError_t hipDeviceGetP2PAttribute(int *value, int attribute, int source, int target);
hipError_t hipDeviceGetStreamPriorityRange(int *least, int *greatest);
hipError_t hipGetDeviceProperties(hipDeviceProp_tR0000 *properties, int device);
hipError_t hipGetDevicePropertiesR0000(hipDeviceProp_tR0000 *properties, int device);
hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *properties, int device);
hipError_t hipDeviceSynchronize(void);
hipError_t hipDeviceReset(void);
hipError_t hipSetDeviceFlags(unsigned int flags);
hipError_t hipGetDeviceFlags(unsigned int *flags);
hipError_t hipDeviceCanAccessPeer(int *can, int device, int peer);
hipError_t hipDeviceEnablePeerAccess(int peer, unsigned int flags);
hipError_t hipDeviceDisablePeerAccess(int peer);

hipError_t hipDeviceGetLimit(size_t *value, int limit);
hipError_t hipDeviceSetLimit(int limit, size_t value);
hipError_t hipDeviceGetCacheConfig(int *config);
hipError_t hipDeviceSetCacheConfig(int config);
hipError_t hipDeviceGetSharedMemConfig(int *config);
hipError_t hipDeviceSetSharedMemConfig(int config);
hipError_t hipCtxGetSharedMemConfig(int *config);
hipError_t hipGetProcAddress(const char *symbol, void **place, int version, uint64_t flags, int *found);
hipError_t hipGetProcAddress_spt(const char *symbol, void **place, int version, uint64_t flags, int *found);

/* Contexts */
hipError_t hipCtxCreate(hipObject *context, unsigned int flags, int device);
hipError_t hipCtxDestroy(hipObject context);
hipError_t hipCtxPushCurrent(hipObject context);
hipError_t hipCtxPopCurrent(hipObject *context);
hipError_t hipCtxSetCurrent(hipObject context);
hipError_t hipCtxGetCurrent(hipObject *context);
hipError_t hipCtxGetDevice(int *device);
hipError_t hipCtxSynchronize(void);
hipError_t hipDevicePrimaryCtxGetState(int device, unsigned int *flags, int *active);
hipError_t hipDevicePrimaryCtxRetain(hipObject *context, int device);
hipError_t hipDevicePrimaryCtxRelease(int device);
hipError_t hipDevicePrimaryCtxReset(int device);
hipError_t hipDevicePrimaryCtxSetFlags(int device, unsigned int flags);

/* Memory */
hipError_t hipMalloc(hipAddress *pointer, size_t size);
hipError_t hipExtMallocWithFlags(hipAddress *pointer, size_t size, unsigned int flags);
hipError_t hipMallocPitch(hipAddress *pointer, size_t *pitch, size_t width, size_t height);
hipError_t hipMemAllocPitch(hipAddress *pointer, size_t *pitch, size_t width, size_t height, unsigned int element);
hipError_t hipMalloc3D(hipPitchedPtr *pointer, hipExtent extent);
hipError_t hipMallocManaged(hipAddress *pointer, size_t size, unsigned int flags);
hipError_t hipMallocAsync(hipAddress *pointer, size_t size, hipObject stream);
hipError_t hipFree(hipAddress pointer);
hipError_t hipFreeAsync(hipAddress pointer, hipObject stream);
hipError_t hipMemGetInfo(size_t *available, size_t *total);
hipError_t hipMemPtrGetInfo(hipAddress pointer, size_t *size);
hipError_t hipMemGetAddressRange(hipAddress *base, size_t *size, hipAddress pointer);
hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, hipAddress pointer);
hipError_t hipPointerGetAttribute(void *data, int attribute, hipAddress pointer);
hipError_t hipDrvPointerGetAttributes(unsigned int count, const int *attributes, void **data, hipAddress pointer);
hipError_t hipMemAdvise(hipAddress pointer, size_t size, int advice, int device);
hipError_t hipMemPrefetchAsync(hipAddress pointer, size_t size, int device, hipObject stream);

hipError_t hipPointerSetAttribute(const void *value, int attribute, hipAddress pointer);
hipError_t hipMemGetHandleForAddressRange(void *handle, hipAddress pointer, size_t size, int type, unsigned long long flags);

/* Pools */
hipError_t hipDeviceGetDefaultMemPool(hipObject *pool, int device);
hipError_t hipDeviceGetMemPool(hipObject *pool, int device);
hipError_t hipDeviceSetMemPool(int device, hipObject pool);
hipError_t hipMemPoolCreate(hipObject *pool, const hipMemPoolProps *properties);
hipError_t hipMemPoolDestroy(hipObject pool);
hipError_t hipMemPoolTrimTo(hipObject pool, size_t size);
hipError_t hipMemPoolGetAttribute(hipObject pool, int attribute, void *value);
hipError_t hipMemPoolSetAttribute(hipObject pool, int attribute, void *value);
hipError_t hipMemPoolGetAccess(int *flags, hipObject pool, hipMemLocation *location);
hipError_t hipMemPoolSetAccess(hipObject pool, const hipMemAccessDesc *access, size_t count);
hipError_t hipMemPoolExportToShareableHandle(int *descriptor, hipObject pool, int type, unsigned int flags);
hipError_t hipMemPoolImportFromShareableHandle(hipObject *pool, hipAddress descriptor, int type, unsigned int flags);
hipError_t hipMemPoolExportPointer(hipIpcHandle *data, hipAddress pointer);
hipError_t hipMemPoolImportPointer(hipAddress *pointer, hipObject pool, const hipIpcHandle *data);
hipError_t hipMallocFromPoolAsync(hipAddress *pointer, size_t size, hipObject pool, hipObject stream);

/* Virtual memory */
hipError_t hipMemAddressReserve(hipAddress *pointer, size_t size, size_t alignment, hipAddress wish, unsigned long long flags);
hipError_t hipMemAddressFree(hipAddress pointer, size_t size);
hipError_t hipMemGetAllocationGranularity(size_t *granularity, const hipMemAllocationProp *properties, int option);
hipError_t hipMemCreate(hipHandle *handle, size_t size, const hipMemAllocationProp *properties, unsigned long long flags);
hipError_t hipMemRelease(hipHandle handle);
hipError_t hipMemRetainAllocationHandle(hipHandle *handle, hipAddress pointer);
hipError_t hipMemGetAllocationPropertiesFromHandle(hipMemAllocationProp *properties, hipHandle handle);
hipError_t hipMemMap(hipAddress pointer, size_t size, size_t offset, hipHandle handle, unsigned long long flags);
hipError_t hipMemUnmap(hipAddress pointer, size_t size);
hipError_t hipMemSetAccess(hipAddress pointer, size_t size, const hipMemAccessDesc *access, size_t count);
hipError_t hipMemGetAccess(unsigned long long *access, const hipMemLocation *location, hipAddress pointer);
hipError_t hipMemExportToShareableHandle(int *descriptor, hipHandle handle, int type, unsigned long long flags);
hipError_t hipMemImportFromShareableHandle(hipHandle *handle, hipAddress descriptor, int type);

/* The host's memory */
hipError_t hipHostMalloc(hipAddress *pointer, size_t size, unsigned int flags);
hipError_t hipHostAlloc(hipAddress *pointer, size_t size, unsigned int flags);
hipError_t hipExtHostAlloc(hipAddress *pointer, size_t size, unsigned int flags);
hipError_t hipMallocHost(hipAddress *pointer, size_t size);
hipError_t hipMemAllocHost(hipAddress *pointer, size_t size);
hipError_t hipHostFree(hipAddress pointer);
hipError_t hipFreeHost(hipAddress pointer);
hipError_t hipHostRegister(hipAddress pointer, size_t size, unsigned int flags);
hipError_t hipHostUnregister(hipAddress pointer);
hipError_t hipHostGetDevicePointer(hipAddress *pointer, hipAddress host, unsigned int flags);
hipError_t hipHostGetFlags(unsigned int *flags, hipAddress pointer);

/* Between processes */
hipError_t hipIpcGetMemHandle(hipIpcHandle *handle, hipAddress pointer);
hipError_t hipIpcOpenMemHandle(hipAddress *pointer, hipIpcHandle handle, unsigned int flags);
hipError_t hipIpcCloseMemHandle(hipAddress pointer);
hipError_t hipIpcGetEventHandle(hipIpcHandle *handle, hipObject event);
hipError_t hipIpcOpenEventHandle(hipObject *event, hipIpcHandle handle);

/* Copies */
hipError_t hipMemcpy(hipAddress target, hipAddress source, size_t size, int kind);
hipError_t hipMemcpyAsync(hipAddress target, hipAddress source, size_t size, int kind, hipObject stream);
hipError_t hipMemcpyWithStream(hipAddress target, hipAddress source, size_t size, int kind, hipObject stream);
hipError_t hipMemcpyHtoD(hipAddress target, hipAddress source, size_t size);
hipError_t hipMemcpyDtoH(hipAddress target, hipAddress source, size_t size);
hipError_t hipMemcpyDtoD(hipAddress target, hipAddress source, size_t size);
hipError_t hipMemcpyHtoDAsync(hipAddress target, hipAddress source, size_t size, hipObject stream);
hipError_t hipMemcpyDtoHAsync(hipAddress target, hipAddress source, size_t size, hipObject stream);
hipError_t hipMemcpyDtoDAsync(hipAddress target, hipAddress source, size_t size, hipObject stream);
hipError_t hipMemcpyPeer(hipAddress target, int to, hipAddress source, int from, size_t size);
hipError_t hipMemcpyPeerAsync(hipAddress target, int to, hipAddress source, int from, size_t size, hipObject stream);
hipError_t hipMemcpy2D(hipAddress target, size_t target_pitch, hipAddress source, size_t source_pitch, size_t width, size_t height, int kind);
hipError_t hipMemcpy2DAsync(hipAddress target, size_t target_pitch, hipAddress source, size_t source_pitch, size_t width, size_t height, int kind, hipObject stream);
hipError_t hipMemset(hipAddress pointer, int value, size_t size);
hipError_t hipMemsetAsync(hipAddress pointer, int value, size_t size, hipObject stream);
hipError_t hipMemsetD8(hipAddress pointer, unsigned char value, size_t count);
hipError_t hipMemsetD8Async(hipAddress pointer, unsigned char value, size_t count, hipObject stream);
hipError_t hipMemsetD16(hipAddress pointer, unsigned short value, size_t count);
hipError_t hipMemsetD16Async(hipAddress pointer, unsigned short value, size_t count, hipObject stream);
hipError_t hipMemsetD32(hipAddress pointer, int value, size_t count);
hipError_t hipMemsetD32Async(hipAddress pointer, int value, size_t count, hipObject stream);
hipError_t hipMemset2D(hipAddress pointer, size_t pitch, int value, size_t width, size_t height);
hipError_t hipMemset2DAsync(hipAddress pointer, size_t pitch, int value, size_t width, size_t height, hipObject stream);
hipError_t hipMemcpy3D(hipAddress parameters);
hipError_t hipMemcpy3DAsync(hipAddress parameters, hipObject stream);
hipError_t hipMemset3D(hipPitchedPtr pointer, int value, hipExtent extent);
hipError_t hipMemset3DAsync(hipPitchedPtr pointer, int value, hipExtent extent, hipObject stream);

/* Streams and events */
hipError_t hipStreamCreate(hipObject *stream);
hipError_t hipStreamCreateWithFlags(hipObject *stream, unsigned int flags);
hipError_t hipStreamCreateWithPriority(hipObject *stream, unsigned int flags, int priority);
hipError_t hipStreamDestroy(hipObject stream);
hipError_t hipStreamQuery(hipObject stream);
hipError_t hipStreamSynchronize(hipObject stream);
hipError_t hipStreamWaitEvent(hipObject stream, hipObject event, unsigned int flags);
hipError_t hipStreamWriteValue32(hipObject stream, hipAddress pointer, uint32_t value, unsigned int flags);
hipError_t hipStreamWriteValue64(hipObject stream, hipAddress pointer, uint64_t value, unsigned int flags);
hipError_t hipStreamWaitValue32(hipObject stream, hipAddress pointer, uint32_t value, unsigned int flags, uint32_t mask);
hipError_t hipStreamWaitValue64(hipObject stream, hipAddress pointer, uint64_t value, unsigned int flags, uint64_t mask);
hipError_t hipStreamGetFlags(hipObject stream, unsigned int *flags);
hipError_t hipStreamGetPriority(hipObject stream, int *priority);
hipError_t hipStreamGetDevice(hipObject stream, int *device);
int hipGetStreamDeviceId(hipObject stream);
hipError_t hipStreamAddCallback(hipObject stream, hipStreamCallback_t callback, void *data, unsigned int flags);
hipError_t hipLaunchHostFunc(hipObject stream, hipHostFn_t function, void *data);
hipError_t hipStreamBeginCapture(hipObject stream, int mode);
hipError_t hipStreamEndCapture(hipObject stream, hipObject *graph);
hipError_t hipStreamIsCapturing(hipObject stream, int *status);
hipError_t hipStreamGetCaptureInfo(hipObject stream, int *status, unsigned long long *number);
hipError_t hipStreamGetCaptureInfo_v2(hipObject stream, int *status, unsigned long long *number, hipObject *graph, hipAddress *nodes, size_t *count);
hipError_t hipThreadExchangeStreamCaptureMode(int *mode);
hipError_t hipGraphDestroy(hipObject graph);
hipError_t hipEventCreate(hipObject *event);
hipError_t hipEventCreateWithFlags(hipObject *event, unsigned int flags);
hipError_t hipEventDestroy(hipObject event);
hipError_t hipEventRecord(hipObject event, hipObject stream);
hipError_t hipEventRecordWithFlags(hipObject event, hipObject stream, unsigned int flags);
hipError_t hipEventQuery(hipObject event);
hipError_t hipEventSynchronize(hipObject event);
hipError_t hipEventElapsedTime(float *milliseconds, hipObject start, hipObject end);

/* Functions that use the default stream of the calling thread, not that of the device */
hipError_t hipMemcpy_spt(hipAddress target, hipAddress source, size_t size, int kind);
hipError_t hipMemcpyAsync_spt(hipAddress target, hipAddress source, size_t size, int kind, hipObject stream);
hipError_t hipMemcpy2D_spt(hipAddress target, size_t target_pitch, hipAddress source, size_t source_pitch, size_t width, size_t height, int kind);
hipError_t hipMemcpy2DAsync_spt(hipAddress target, size_t target_pitch, hipAddress source, size_t source_pitch, size_t width, size_t height, int kind, hipObject stream);
hipError_t hipMemcpy3D_spt(hipAddress parameters);
hipError_t hipMemcpy3DAsync_spt(hipAddress parameters, hipObject stream);
hipError_t hipMemset3D_spt(hipPitchedPtr pointer, int value, hipExtent extent);
hipError_t hipMemset3DAsync_spt(hipPitchedPtr pointer, int value, hipExtent extent, hipObject stream);
hipError_t hipMemset_spt(hipAddress pointer, int value, size_t size);
hipError_t hipMemsetAsync_spt(hipAddress pointer, int value, size_t size, hipObject stream);
hipError_t hipMemset2D_spt(hipAddress pointer, size_t pitch, int value, size_t width, size_t height);
hipError_t hipMemset2DAsync_spt(hipAddress pointer, size_t pitch, int value, size_t width, size_t height, hipObject stream);
hipError_t hipStreamQuery_spt(hipObject stream);
hipError_t hipStreamSynchronize_spt(hipObject stream);
hipError_t hipStreamWaitEvent_spt(hipObject stream, hipObject event, unsigned int flags);
hipError_t hipStreamGetFlags_spt(hipObject stream, unsigned int *flags);
hipError_t hipStreamGetPriority_spt(hipObject stream, int *priority);
hipError_t hipStreamAddCallback_spt(hipObject stream, hipStreamCallback_t callback, void *data, unsigned int flags);
hipError_t hipLaunchHostFunc_spt(hipObject stream, hipHostFn_t function, void *data);
hipError_t hipStreamBeginCapture_spt(hipObject stream, int mode);
hipError_t hipStreamEndCapture_spt(hipObject stream, hipObject *graph);
hipError_t hipStreamIsCapturing_spt(hipObject stream, int *status);
hipError_t hipStreamGetCaptureInfo_spt(hipObject stream, int *status, unsigned long long *number);
hipError_t hipStreamGetCaptureInfo_v2_spt(hipObject stream, int *status, unsigned long long *number, hipObject *graph, hipAddress *nodes, size_t *count);
hipError_t hipEventRecord_spt(hipObject event, hipObject stream);

/* Functions that are not emulated, and whose result is not an error code */
const char *hipApiName(uint32_t id);
const char *hipGetCmdName(unsigned int op);
const char *hipKernelNameRef(hipObject function);
const char *hipKernelNameRefByPtr(const void *function, hipObject stream);
void hipInitActivityCallback(void *by_id, void *by_op, void *argument);
void hipRegisterTracerCallback(const void *function);
