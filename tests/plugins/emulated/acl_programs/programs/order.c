/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done in the wrong order, or with arguments that cannot be, in one process.
 */
#include "program.h"

enum { NBYTES = 2 << 20, KEY_NBYTES = 65 };

static void before_a_device_is_set(void)
{
    aclrtPhysicalMemProp prop = device_memory(0);
    aclrtDrvMemHandle handle = NULL;
    void *address = NULL;
    char byte = 0;
    int32_t device = 0;

    CHECK(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK(aclrtMalloc(&address, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK(aclrtMemcpy(&byte, 1, &device, 1, ACL_MEMCPY_DEFAULT), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK(aclrtMallocPhysical(&handle, NBYTES, &prop, 0), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK(aclrtReserveMemAddress(&address, NBYTES, 0, NULL, 0), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK(aclrtMemImportFromShareableHandle(0, 0, &handle), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK(aclrtSynchronizeDevice(), ACL_ERROR_RT_CONTEXT_NULL);
    TRUE(!address && !handle);
}

static void null_pointers(void)
{
    aclrtPhysicalMemProp prop = device_memory(0);
    aclrtDrvMemHandle handle = NULL;
    void *address = NULL;
    uint64_t share = 0;
    int32_t pid = 1;
    size_t size = 0;
    char key[KEY_NBYTES] = "";

    CHECK(aclrtMalloc(NULL, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMalloc(&address, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtFree(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtGetDevice(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtGetDeviceCount(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtDeviceGetBareTgid(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtCreateStream(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtCreateContext(NULL, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtGetMemInfo(ACL_HBM_MEM, NULL, &size), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMemcpy(NULL, 1, key, 1, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
    OK(aclrtMemcpy(NULL, 0, NULL, 0, ACL_MEMCPY_HOST_TO_DEVICE));
    CHECK(aclrtMallocPhysical(NULL, NBYTES, &prop, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMallocPhysical(&handle, NBYTES, NULL, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMemGetAllocationGranularity(NULL, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, &size),
          ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtReserveMemAddress(NULL, NBYTES, 0, NULL, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtReleaseMemAddress(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMapMem(NULL, NBYTES, 0, &prop, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtUnmapMem(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtFreePhysical(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMemExportToShareableHandle(NULL, ACL_MEM_HANDLE_TYPE_NONE, 0, &share),
          ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMemSetPidToShareableHandle(0, NULL, 1), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMemSetPidToShareableHandle(0, &pid, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMemImportFromShareableHandle(0, 0, NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtIpcMemGetExportKey(NULL, NBYTES, key, KEY_NBYTES, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtIpcMemImportByKey(NULL, key, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtIpcMemImportByKey(&address, NULL, 0), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtIpcMemClose(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtIpcMemSetImportPid(NULL, &pid, 1), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtMemRetainAllocationHandle(NULL, &handle), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtPointerGetAttributes(&prop, NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(aclrtRecordEvent(NULL, NULL), ACL_ERROR_INVALID_PARAM);
    /* A list that is too long is not read. */
    CHECK(aclrtMemSetPidToShareableHandle(0, &pid, 65536), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(aclrtIpcMemSetImportPid(key, &pid, 1000000), ACL_ERROR_RT_PARAM_INVALID);
    TRUE(!address && !handle && !share);
}

static void physical_memory(void)
{
    aclrtPhysicalMemProp prop = device_memory(0), found;
    aclrtDrvMemHandle handle = NULL, again = NULL;
    aclrtMemAccessDesc access;
    aclrtMemLocation place;
    void *address = NULL, *base = NULL;
    uint64_t share = 0, flag = 0;
    size_t size = 0;
    char key[KEY_NBYTES];

    CHECK(aclrtMallocPhysical(&handle, 4096, &prop, 0), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(aclrtMallocPhysical(&handle, NBYTES, &prop, 1), ACL_ERROR_INVALID_PARAM);
    prop.location.id = 99;
    CHECK(aclrtMallocPhysical(&handle, NBYTES, &prop, 0), ACL_ERROR_RT_INVALID_DEVICEID);
    prop.location.id = 0;
    prop.reserve = 1;
    CHECK(aclrtMallocPhysical(&handle, NBYTES, &prop, 0), ACL_ERROR_RT_PARAM_INVALID);
    prop.reserve = 0;
    OK(aclrtMallocPhysical(&handle, NBYTES, &prop, 0));
    OK(aclrtMemGetAllocationPropertiesFromHandle(handle, &found));
    TRUE(found.memAttr == prop.memAttr && found.location.type == prop.location.type);
    TRUE(!found.location.id && !found.reserve);

    OK(aclrtReserveMemAddress(&address, NBYTES, 0, NULL, 0));
    CHECK(aclrtUnmapMem(address), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    CHECK(aclrtMapMem(address, NBYTES, 4096, handle, 0), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(aclrtMapMem(address, 4096, 0, handle, 0), ACL_ERROR_RT_PARAM_INVALID);
    OK(aclrtMapMem(address, NBYTES, 0, handle, 0));
    CHECK(aclrtMapMem(address, NBYTES, 0, handle, 0), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    CHECK(aclrtReleaseMemAddress(address), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    memset(&access, 0, sizeof access);
    access.flags = ACL_RT_MEM_ACCESS_FLAGS_READWRITE;
    access.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    OK(aclrtMemSetAccess(address, NBYTES, &access, 1));
    CHECK(aclrtMemSetAccess(address, NBYTES, NULL, 1), ACL_ERROR_RT_PARAM_INVALID);
    access.flags = ACL_RT_MEM_ACCESS_FLAGS_READ;
    CHECK(aclrtMemSetAccess(address, NBYTES, &access, 1), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    place = access.location;
    OK(aclrtMemGetAccess(address, &place, &flag));
    TRUE(flag == ACL_RT_MEM_ACCESS_FLAGS_READWRITE);
    OK(aclrtMemRetainAllocationHandle(address, &again));
    TRUE(again == handle);
    OK(aclrtFreePhysical(again));
    OK(aclrtMemGetAddressRange((char *)address + 5, &base, &size));
    TRUE(base == address && size == NBYTES);

    OK(aclrtIpcMemGetExportKey(address, NBYTES, key, KEY_NBYTES, 0));
    CHECK(aclrtUnmapMem(address), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    OK(aclrtIpcMemClose(key));
    OK(aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE, 0, &share));
    CHECK(aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE, 0, &share),
          ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    CHECK(aclrtMemImportFromShareableHandle(share, 0, &again), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    CHECK(aclrtMemImportFromShareableHandle(share + 77, 0, &again), ACL_ERROR_RT_INVALID_HANDLE);
    CHECK(aclrtIpcMemGetExportKey(address, NBYTES, key, KEY_NBYTES, 0),
          ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    OK(aclrtUnmapMem(address));
    OK(aclrtFreePhysical(handle));
    CHECK(aclrtFreePhysical(handle), ACL_ERROR_RT_PARAM_INVALID);
    OK(aclrtReleaseMemAddress(address));
    CHECK(aclrtReleaseMemAddress(address), ACL_ERROR_RT_PARAM_INVALID);
}

static void keys(void)
{
    void *address = NULL, *other = NULL;
    char key[KEY_NBYTES];
    int32_t pid = 0, far = 77;

    OK(aclrtMalloc(&address, NBYTES, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK(aclrtIpcMemGetExportKey(address, NBYTES, key, KEY_NBYTES - 1, 0),
          ACL_ERROR_RT_PARAM_INVALID);
    CHECK(aclrtIpcMemGetExportKey(address, 0, key, KEY_NBYTES, 0), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(aclrtIpcMemGetExportKey(address, NBYTES, key, KEY_NBYTES, 2),
          ACL_ERROR_RT_PARAM_INVALID);
    CHECK(aclrtIpcMemGetExportKey((char *)address + 512, 512, key, KEY_NBYTES, 0),
          ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    OK(aclrtIpcMemGetExportKey(address, NBYTES, key, KEY_NBYTES, 0));
    CHECK(aclrtIpcMemSetImportPid(key, &pid, 0), ACL_ERROR_RT_PARAM_INVALID);
    CHECK(aclrtIpcMemSetImportPid(key, &pid, 1), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    OK(aclrtIpcMemSetImportPid(key, &far, 1));
    CHECK(aclrtIpcMemImportByKey(&other, key, 0), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    CHECK(aclrtIpcMemImportByKey(&other, "no key", 0), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    OK(aclrtIpcMemClose(key));
    CHECK(aclrtIpcMemClose(key), ACL_ERROR_RT_DRV_INTERNAL_ERROR);
    OK(aclrtIpcMemGetExportKey(address, NBYTES, key, KEY_NBYTES, 1));
    CHECK(aclrtIpcMemSetImportPid(key, &far, 1), ACL_ERROR_RT_NO_PERMISSION);
    OK(aclrtIpcMemClose(key));
    OK(aclrtFree(address));
    CHECK(aclrtFree(address), ACL_ERROR_RT_PARAM_INVALID);
}

int main(void)
{
    int32_t major = 0, minor = 0, patch = 0, device = 0;
    uint32_t count = 0;
    aclrtRunMode mode = ACL_DEVICE;
    aclrtUuid first, second;
    aclrtPtrAttributes attributes;

    CHECK(aclInit("/nowhere/acl.json"), ACL_ERROR_INVALID_FILE);
    OK(aclInit(NULL));
    CHECK(aclInit(NULL), ACL_ERROR_REPEAT_INITIALIZE);
    before_a_device_is_set();
    OK(aclrtGetDeviceCount(&count));
    TRUE(count == 2);
    CHECK(aclrtSetDevice(2), ACL_ERROR_RT_INVALID_DEVICEID);
    TRUE(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL) == ACL_ERROR_RT_INVALID_DEVICEID);
    CHECK(aclrtGetLastError(ACL_RT_THREAD_LEVEL), ACL_ERROR_RT_INVALID_DEVICEID);
    CHECK(aclrtGetLastError(ACL_RT_THREAD_LEVEL), ACL_SUCCESS);
    TRUE(strstr(aclGetRecentErrMsg(), "aclrtSetDevice"));
    TRUE(!aclGetRecentErrMsg());
    OK(aclrtSetDevice(0));
    OK(aclrtGetRunMode(&mode));
    OK(aclrtGetVersion(&major, &minor, &patch));
    OK(aclrtGetDevice(&device));
    TRUE(mode == ACL_HOST && major == 1 && !device && aclrtGetSocName());
    OK(aclrtDeviceGetUuid(0, &first));
    OK(aclrtDeviceGetUuid(1, &second));
    TRUE(memcmp(&first, &second, sizeof first));
    OK(aclrtPointerGetAttributes(&first, &attributes));
    TRUE(attributes.location.type == ACL_MEM_LOCATION_TYPE_UNREGISTERED);
    null_pointers();
    physical_memory();
    keys();
    CHECK(acltdtGrantQueue(0, 1, 4, 0), ACL_ERROR_FEATURE_UNSUPPORTED);
    CHECK(aclrtDestroyLabel(&device), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    CHECK(aclrtDestroyLabel(&device), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    OK(aclrtResetDevice(0));
    CHECK(aclrtResetDevice(0), ACL_ERROR_RT_CONTEXT_NULL);
    OK(aclFinalize());
    CHECK(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE);
    puts("ordered");
    return 0;
}
