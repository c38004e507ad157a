// SPDX-License-Identifier: Apache-2.0
// Stands in for libascendcl: records what it is called with, answers what it is told to.
//
// -DEDITION=1 leaves out what older CANN lacks. Structures are read and written by the offsets of
// the headers.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define POINTER 0x00ff812345678000ull

static char record[1 << 14];
static char refused[64];
static int code;
static volatile int may_import = 1;
static const char *key = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

const char *vendor_record(void) { return record; }
void vendor_reset(void) { record[0] = refused[0] = 0; may_import = 1; }
void vendor_refuse(const char *name, int wanted) { strcpy(refused, name); code = wanted; }
void vendor_hold(int hold) { may_import = !hold; }
void vendor_key(const char *wanted) { key = wanted; }

static int note(const char *name, const char *format, ...)
{
    size_t length = strlen(record);
    length += snprintf(record + length, sizeof record - length, "%s", name);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(record + length, sizeof record - length, format, arguments);
    va_end(arguments);
    snprintf(record + length, sizeof record - length, "\n");
    if (strcmp(name, refused))
        return 0;
    refused[0] = 0;
    return code;
}

#define NOTE(...)                                \
    do {                                         \
        int answer = note(__func__, __VA_ARGS__); \
        if (answer)                              \
            return answer;                       \
    } while (0)
#define INT(structure, offset) (*(const int *)((const char *)(structure) + (offset)))

static void note_pids(const int *pids, size_t count)
{
    for (size_t i = 0; i < count; i++)
        note(" pid", " %d", pids[i]);
}

// The module acl.
int aclInit(const char *path) { NOTE(" %p", path); return 0; }
const char *aclrtGetSocName(void) { note(__func__, ""); return SOC; }
const char *aclGetRecentErrMsg(void) { note(__func__, ""); return MESSAGE; }

// Devices and contexts.
int aclrtGetDeviceCount(uint32_t *out) { NOTE(""); *out = 2; return 0; }
int aclrtGetRunMode(int *out) { NOTE(""); *out = 1; return 0; }
int aclrtSetDevice(int32_t device) { NOTE(" %d", device); return 0; }
int aclrtGetDevice(int32_t *out) { NOTE(""); *out = 1; return 0; }
int aclrtCreateContext(void **out, int32_t device)
{
    NOTE(" %d", device);
    *out = (void *)POINTER;
    return 0;
}
int aclrtDestroyContext(void *context) { NOTE(" %p", context); return 0; }
int aclrtSetCurrentContext(void *context) { NOTE(" %p", context); return 0; }
int aclrtGetCurrentContext(void **out) { NOTE(""); *out = (void *)POINTER; return 0; }
int aclrtSynchronizeDevice(void) { NOTE(""); return 0; }
int aclrtDeviceGetBareTgid(int32_t *out) { NOTE(""); *out = 4321; return 0; }
int aclrtDeviceGetUuid(int32_t device, unsigned char *out)
{
    NOTE(" %d", device);
    for (int i = 0; i < 16; i++)
        out[i] = 255 - i - device;
    return 0;
}
int aclrtDeviceCanAccessPeer(int32_t *out, int32_t device, int32_t peer)
{
    NOTE(" %d %d", device, peer);
    *out = 1;
    return 0;
}
int aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags)
{
    NOTE(" %d %u", peer, flags);
    return 0;
}
int aclrtDevicePeerAccessStatus(int32_t device, int32_t peer, int32_t *out)
{
    NOTE(" %d %d", device, peer);
    *out = 1;
    return 0;
}

// Copies.
int aclrtCreateStream(void **out) { NOTE(""); *out = (void *)POINTER; return 0; }
int aclrtSynchronizeStream(void *stream) { NOTE(" %p", stream); return 0; }
int aclrtDestroyStream(void *stream) { NOTE(" %p", stream); return 0; }
int aclrtMemcpy(void *target, size_t room, const void *source, size_t count, int kind)
{
    NOTE(" %p %zu %p %zu %d", target, room, source, count, kind);
    return 0;
}
int aclrtMemcpyAsync(
    void *target, size_t room, const void *source, size_t count, int kind, void *stream)
{
    NOTE(" %p %zu %p %zu %d %p", target, room, source, count, kind, stream);
    return 0;
}

// Shareable handles. Memory is described by 32 bytes: handle type, allocation type, attribute, id
// and type of the location, 4 bytes of nothing, and 8 that are reserved.
#define PROP " %d %d %d %d %d %d"
#define OF_PROP(prop) \
    INT(prop, 0), INT(prop, 4), INT(prop, 8), INT(prop, 12), INT(prop, 16), INT(prop, 24)

int aclrtMemGetAllocationGranularity(const void *prop, int option, size_t *out)
{
    NOTE(PROP " %d", OF_PROP(prop), option);
    *out = 2 << 20;
    return 0;
}
int aclrtMallocPhysical(void **out, size_t size, const void *prop, uint64_t flags)
{
    NOTE(" %zu" PROP " %lu", size, OF_PROP(prop), flags);
    *out = (void *)POINTER;
    return 0;
}
int aclrtFreePhysical(void *memory) { NOTE(" %p", memory); return 0; }
int aclrtReserveMemAddress(
    void **out, size_t size, size_t alignment, void *wanted, uint64_t flags)
{
    NOTE(" %zu %zu %p %lu", size, alignment, wanted, flags);
    *out = (void *)POINTER;
    return 0;
}
int aclrtReleaseMemAddress(void *pointer) { NOTE(" %p", pointer); return 0; }
int aclrtMapMem(void *pointer, size_t size, size_t offset, void *memory, uint64_t flags)
{
    NOTE(" %p %zu %zu %p %lu", pointer, size, offset, memory, flags);
    return 0;
}
int aclrtUnmapMem(void *pointer) { NOTE(" %p", pointer); return 0; }
int aclrtMemExportToShareableHandle(void *memory, int type, uint64_t flags, uint64_t *out)
{
    // The value is written before some drivers refuse.
    *out = POINTER;
    NOTE(" %p %d %lu", memory, type, flags);
    return 0;
}
int aclrtMemSetPidToShareableHandle(uint64_t share, int32_t *pids, size_t count)
{
    NOTE(" %#lx %zu", share, count);
    note_pids(pids, count);
    return 0;
}
int aclrtMemImportFromShareableHandle(uint64_t share, int32_t device, void **out)
{
    NOTE(" %#lx %d", share, device);
    for (int i = 0; i < 20000 && !may_import; i++)
        usleep(1000);
    *out = (void *)POINTER;
    return may_import ? 0 : 507899;
}

// Keys.
int aclrtMalloc(void **out, size_t size, int policy)
{
    NOTE(" %zu %d", size, policy);
    *out = (void *)POINTER;
    return 0;
}
int aclrtFree(void *pointer) { NOTE(" %p", pointer); return 0; }
int aclrtIpcMemGetExportKey(void *pointer, size_t size, char *out, size_t length, uint64_t flags)
{
    NOTE(" %p %zu %zu %lu", pointer, size, length, flags);
    snprintf(out, length, "%s", key);
    return 0;
}
int aclrtIpcMemSetImportPid(const char *given, int32_t *pids, size_t count)
{
    NOTE(" %s %zu", given, count);
    note_pids(pids, count);
    return 0;
}
int aclrtIpcMemImportByKey(void **out, const char *given, uint64_t flags)
{
    NOTE(" %s %lu", given, flags);
    *out = (void *)POINTER;
    return 0;
}
int aclrtIpcMemClose(const char *given) { NOTE(" %s", given); return 0; }

#if EDITION > 1
// Values and notifies.
int aclrtHostRegister(void *pointer, uint64_t size, int kind, void **out)
{
    NOTE(" %p %lu %d", pointer, size, kind);
    *out = (void *)POINTER;
    return 0;
}
int aclrtHostUnregister(void *pointer) { NOTE(" %p", pointer); return 0; }
int aclrtValueWrite(void *pointer, uint64_t value, uint32_t flag, void *stream)
{
    NOTE(" %p %#lx %u %p", pointer, value, flag, stream);
    return 0;
}
int aclrtValueWait(void *pointer, uint64_t value, uint32_t flag, void *stream)
{
    NOTE(" %p %#lx %u %p", pointer, value, flag, stream);
    return 0;
}
int aclrtCreateNotify(void **out, uint64_t flag)
{
    NOTE(" %lu", flag);
    *out = (void *)POINTER;
    return 0;
}
int aclrtDestroyNotify(void *notify) { NOTE(" %p", notify); return 0; }
int aclrtRecordNotify(void *notify, void *stream) { NOTE(" %p %p", notify, stream); return 0; }
int aclrtWaitAndResetNotify(void *notify, void *stream, uint32_t timeout)
{
    NOTE(" %p %p %u", notify, stream, timeout);
    return 0;
}
int aclrtNotifyGetExportKey(void *notify, char *out, size_t length, uint64_t flags)
{
    NOTE(" %p %zu %lu", notify, length, flags);
    snprintf(out, length, "%s", key);
    return 0;
}
int aclrtNotifySetImportPid(void *notify, int32_t *pids, size_t count)
{
    NOTE(" %p %zu", notify, count);
    note_pids(pids, count);
    return 0;
}
int aclrtNotifyImportByKey(void **out, const char *given, uint64_t flags)
{
    NOTE(" %s %lu", given, flags);
    *out = (void *)POINTER;
    return 0;
}

// What pyACL lacks.
int aclrtMemRetainAllocationHandle(void *pointer, void **out)
{
    NOTE(" %p", pointer);
    *out = (void *)POINTER;
    return 0;
}
int aclrtMemSetAccess(void *pointer, size_t size, const void *access, size_t count)
{
    NOTE(" %p %zu %zu", pointer, size, count);
    for (size_t i = 0; i < count; i++) {
        const char *one = (const char *)access + 24 * i;
        note(" access", " %d %d %d", INT(one, 0), INT(one, 4), INT(one, 8));
    }
    return 0;
}
int aclrtMemExportToShareableHandleV2(void *memory, uint64_t flags, int type, void *out)
{
    NOTE(" %p %lu %d", memory, flags, type);
    if (type == 1)
        *(uint64_t *)out = POINTER;
    else
        for (int i = 0; i < 128; i++)
            ((unsigned char *)out)[i] = 255 - i;
    return 0;
}
static const char *share_of(int type, const void *share)
{
    static char text[257];
    int count = type == 1 ? 8 : 128;
    for (int i = 0; i < count; i++)
        sprintf(text + 2 * i, "%02x", ((const unsigned char *)share)[i]);
    return text;
}
int aclrtMemSetPidToShareableHandleV2(void *share, int type, int32_t *pids, size_t count)
{
    NOTE(" %s %d %zu", share_of(type, share), type, count);
    note_pids(pids, count);
    return 0;
}
int aclrtMemImportFromShareableHandleV2(void *share, int type, uint64_t flags, void **out)
{
    NOTE(" %s %d %lu", share_of(type, share), type, flags);
    *out = (void *)POINTER;
    return 0;
}
#endif
