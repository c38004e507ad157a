// SPDX-License-Identifier: Apache-2.0
// Stands in for a vendor's library: records what it is called with, answers what it is told to.
//
// -DHIP=VERSION makes libamdhip64 of that version, -DCUDA=VERSION makes libcudart, and
// -DCUDA_DRIVER=1 makes libcuda. Structures are read and written by the offsets of the headers.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(HIP)
#define RUNTIME(name) hip##name
#define DRIVER(name) hip##name
#define ADDRESS_RANGE hipMemGetAddressRange
#define DEVICE_UUID hipDeviceGetUuid
#define DEVICE_POINTER hipHostGetDevicePointer
#define VERSION HIP
#elif defined(CUDA)
#define RUNTIME(name) cuda##name
#define VERSION CUDA
#else
#define DRIVER(name) cu##name
#define ADDRESS_RANGE cuMemGetAddressRange_v2
#define DEVICE_UUID cuDeviceGetUuid_v2
#define DEVICE_POINTER cuMemHostGetDevicePointer_v2
#endif
#define QUOTED(text) #text
#define NAME(symbol) QUOTED(symbol)

#define POINTER 0x00ff812345678000ull

static char record[1 << 14];
static char refused[64];
static int code, last;
static volatile int may_open = 1;

const char *vendor_record(void) { return record; }
void vendor_reset(void) { record[0] = refused[0] = 0; last = 0; may_open = 1; }
void vendor_refuse(const char *name, int wanted) { strcpy(refused, name); code = wanted; }
void vendor_hold(int hold) { may_open = !hold; }

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
    return last = code;
}

#define NOTE(symbol, ...)                          \
    do {                                           \
        int answer = note(NAME(symbol), __VA_ARGS__); \
        if (answer)                                \
            return answer;                         \
    } while (0)

static inline void put(void *structure, size_t offset, const void *value, size_t size)
{
    memcpy((char *)structure + offset, value, size);
}
#define PUT(structure, offset, type, value) put(structure, offset, &(type){value}, sizeof(type))
#define GET(structure, offset) (*(const int *)((const char *)(structure) + (offset)))

#ifdef RUNTIME
typedef struct { unsigned char bytes[64]; } handle;

static const char *hex(handle given)
{
    static char text[129];
    for (int i = 0; i < 64; i++)
        sprintf(text + 2 * i, "%02x", given.bytes[i]);
    return text;
}

static void fill(handle *out)
{
    for (int i = 0; i < 64; i++)
        out->bytes[i] = 255 - i;
}

int RUNTIME(GetLastError)(void)
{
    note(NAME(RUNTIME(GetLastError)), "");
    int answer = last;
    last = 0;
    return answer;
}
int RUNTIME(RuntimeGetVersion)(int *out)
{
    NOTE(RUNTIME(RuntimeGetVersion), "");
    *out = VERSION;
    return 0;
}
int RUNTIME(GetDeviceCount)(int *out) { NOTE(RUNTIME(GetDeviceCount), ""); *out = 2; return 0; }
int RUNTIME(GetDevice)(int *out) { NOTE(RUNTIME(GetDevice), ""); *out = 1; return 0; }
int RUNTIME(SetDevice)(int device) { NOTE(RUNTIME(SetDevice), " %d", device); return 0; }
int RUNTIME(DeviceSynchronize)(void) { NOTE(RUNTIME(DeviceSynchronize), ""); return 0; }
int RUNTIME(DeviceGetPCIBusId)(char *out, int length, int device)
{
    NOTE(RUNTIME(DeviceGetPCIBusId), " %d", device);
    snprintf(out, length, "0000:%02X:00.0", device + 0xa0);
    return 0;
}
int RUNTIME(DeviceCanAccessPeer)(int *out, int device, int peer)
{
    NOTE(RUNTIME(DeviceCanAccessPeer), " %d %d", device, peer);
    *out = 1;
    return 0;
}
int RUNTIME(DeviceEnablePeerAccess)(int peer, unsigned flags)
{
    NOTE(RUNTIME(DeviceEnablePeerAccess), " %d %u", peer, flags);
    return 0;
}

static void describe(void *out, size_t size, size_t total)
{
    memset(out, 0xee, size);
    put(out, 0, "Some GPU", 9);
    PUT(out, total, size_t, 1ull << 36);
}
#if defined(CUDA) || VERSION < 60000000
int RUNTIME(GetDeviceProperties)(void *out, int device)
{
    NOTE(RUNTIME(GetDeviceProperties), " %d", device);
#ifdef CUDA
    describe(out, 1032, 288);
    put(out, 256, "\x80\1\2\3\4\5\6\7\x88\1\2\3\4\5\6\7", 16);
    PUT(out, 257, char, device + 1);
#else
    describe(out, 792, 256);
#endif
    return 0;
}
#else
int hipGetDevicePropertiesR0600(void *out, int device)
{
    NOTE(hipGetDevicePropertiesR0600, " %d", device);
    describe(out, 1472, 288);
    return 0;
}
#endif

int RUNTIME(Malloc)(void **out, size_t size)
{
    NOTE(RUNTIME(Malloc), " %zu", size);
    *out = (void *)POINTER;
    return 0;
}
int RUNTIME(Free)(void *pointer) { NOTE(RUNTIME(Free), " %p", pointer); return 0; }
int RUNTIME(MemGetInfo)(size_t *available, size_t *total)
{
    NOTE(RUNTIME(MemGetInfo), "");
    *available = 1ull << 35;
    *total = 1ull << 36;
    return 0;
}
int RUNTIME(Memcpy)(void *target, const void *source, size_t size, int kind)
{
    NOTE(RUNTIME(Memcpy), " %p %p %zu %d", target, source, size, kind);
    return 0;
}
int RUNTIME(StreamCreateWithFlags)(void **out, unsigned flags)
{
    NOTE(RUNTIME(StreamCreateWithFlags), " %u", flags);
    *out = (void *)POINTER;
    return 0;
}
int RUNTIME(StreamDestroy)(void *stream) { NOTE(RUNTIME(StreamDestroy), " %p", stream); return 0; }
int RUNTIME(MemcpyAsync)(void *to, const void *from, size_t size, int kind, void *stream)
{
    NOTE(RUNTIME(MemcpyAsync), " %p %p %zu %d %p", to, from, size, kind, stream);
    return 0;
}
int RUNTIME(StreamSynchronize)(void *stream)
{
    NOTE(RUNTIME(StreamSynchronize), " %p", stream);
    return 0;
}
int RUNTIME(StreamIsCapturing)(void *stream, int *out)
{
    NOTE(RUNTIME(StreamIsCapturing), " %p", stream);
    *out = (uintptr_t)stream;
    return 0;
}

int RUNTIME(HostRegister)(void *pointer, size_t size, unsigned flags)
{
    NOTE(RUNTIME(HostRegister), " %p %zu %u", pointer, size, flags);
    return 0;
}
int RUNTIME(HostUnregister)(void *pointer)
{
    NOTE(RUNTIME(HostUnregister), " %p", pointer);
    return 0;
}

int RUNTIME(IpcGetMemHandle)(handle *out, void *pointer)
{
    NOTE(RUNTIME(IpcGetMemHandle), " %p", pointer);
    fill(out);
    return 0;
}
int RUNTIME(IpcOpenMemHandle)(void **out, handle given, unsigned flags)
{
    NOTE(RUNTIME(IpcOpenMemHandle), " %s %u", hex(given), flags);
    for (int i = 0; i < 20000 && !may_open; i++)
        usleep(1000);
    *out = (void *)POINTER;
    return may_open ? 0 : 17;
}
int RUNTIME(IpcCloseMemHandle)(void *pointer)
{
    NOTE(RUNTIME(IpcCloseMemHandle), " %p", pointer);
    return 0;
}
int RUNTIME(IpcGetEventHandle)(handle *out, void *event)
{
    NOTE(RUNTIME(IpcGetEventHandle), " %p", event);
    fill(out);
    return 0;
}
int RUNTIME(IpcOpenEventHandle)(void **out, handle given)
{
    NOTE(RUNTIME(IpcOpenEventHandle), " %s", hex(given));
    *out = (void *)POINTER;
    return 0;
}
int RUNTIME(EventCreateWithFlags)(void **out, unsigned flags)
{
    NOTE(RUNTIME(EventCreateWithFlags), " %u", flags);
    *out = (void *)POINTER;
    return 0;
}
int RUNTIME(EventDestroy)(void *event) { NOTE(RUNTIME(EventDestroy), " %p", event); return 0; }
int RUNTIME(EventSynchronize)(void *event)
{
    NOTE(RUNTIME(EventSynchronize), " %p", event);
    return 0;
}
int RUNTIME(EventQuery)(void *event) { NOTE(RUNTIME(EventQuery), " %p", event); return 0; }
int RUNTIME(StreamWaitEvent)(void *stream, void *event, unsigned flags)
{
    NOTE(RUNTIME(StreamWaitEvent), " %p %p %u", stream, event, flags);
    return 0;
}
int RUNTIME(EventRecord)(void *event, void *stream)
{
    NOTE(RUNTIME(EventRecord), " %p %p", event, stream);
    return 0;
}

// The address says what to answer: its lowest byte the kind, the next one whether it is managed.
int RUNTIME(PointerGetAttributes)(void *out, const void *pointer)
{
    NOTE(RUNTIME(PointerGetAttributes), " %p", pointer);
#ifdef CUDA
    memset(out, 0, 88);
#else
    PUT(out, 24, int, (uintptr_t)pointer >> 8 & 1);
    PUT(out, 28, int, -1);
#endif
    PUT(out, 0, int, (uintptr_t)pointer & 0xff);
    PUT(out, 4, int, -2);
    PUT(out, 8, uint64_t, POINTER);
    PUT(out, 16, uint64_t, 0);
    return 0;
}
#endif

#ifdef DRIVER
int ADDRESS_RANGE(void **base, size_t *size, void *pointer)
{
    NOTE(ADDRESS_RANGE, " %p", pointer);
    *base = (void *)POINTER;
    *size = 1ull << 36;
    return 0;
}
int DEVICE_POINTER(void **out, void *host, unsigned flags)
{
    NOTE(DEVICE_POINTER, " %p %u", host, flags);
    *out = (void *)POINTER;
    return 0;
}
int DEVICE_UUID(unsigned char *out, int device)
{
    NOTE(DEVICE_UUID, " %d", device);
    for (int i = 0; i < 16; i++)
        out[i] = 16 * device + i;
    return 0;
}
int DRIVER(DeviceGetAttribute)(int *out, int attribute, int device)
{
    NOTE(DRIVER(DeviceGetAttribute), " %d %d", attribute, device);
    *out = device;
    return 0;
}
#ifdef HIP
int hipStreamWriteValue64(void *stream, void *pointer, uint64_t value, unsigned flags)
{
    NOTE(hipStreamWriteValue64, " %p %p %#lx %u", stream, pointer, value, flags);
    return 0;
}
int hipStreamWaitValue64(
    void *stream, void *pointer, uint64_t value, unsigned flags, uint64_t mask)
{
    NOTE(hipStreamWaitValue64, " %p %p %#lx %u", stream, pointer, value, flags);
    return ~mask ? 1 : 0;
}
#else
int cuStreamWriteValue64_v2(void *stream, void *pointer, uint64_t value, unsigned flags)
{
    NOTE(cuStreamWriteValue64_v2, " %p %p %#lx %u", stream, pointer, value, flags);
    return 0;
}
int cuStreamWaitValue64_v2(void *stream, void *pointer, uint64_t value, unsigned flags)
{
    NOTE(cuStreamWaitValue64_v2, " %p %p %#lx %u", stream, pointer, value, flags);
    return 0;
}
#endif
int DRIVER(PointerGetAttribute)(void *out, int attribute, void *pointer)
{
    NOTE(DRIVER(PointerGetAttribute), " %d %p", attribute, pointer);
    // Of one byte, of four and of eight.
    if (attribute == 8)
        PUT(out, 0, char, 1);
    else if (attribute == 2)
        PUT(out, 0, int, 2);
    else
        PUT(out, 0, uint64_t, POINTER);
    return 0;
}

// An allocation is described as 32 bytes: type, handle type, type and id of its location, others.
#define PROP " %d %d %d %d"
#define OF_PROP(prop) GET(prop, 0), GET(prop, 4), GET(prop, 8), GET(prop, 12)

int DRIVER(MemGetAllocationGranularity)(size_t *out, const void *prop, int option)
{
    NOTE(DRIVER(MemGetAllocationGranularity), PROP " %d", OF_PROP(prop), option);
    *out = 2 << 20;
    return 0;
}
int DRIVER(MemCreate)(void **out, size_t size, const void *prop, unsigned long long flags)
{
    static const char zeros[16];
    NOTE(DRIVER(MemCreate), " %zu" PROP " %llu", size, OF_PROP(prop), flags);
    *out = (void *)POINTER;
    return memcmp((const char *)prop + 16, zeros, 16) ? 1 : 0;
}
int DRIVER(MemRelease)(void *memory) { NOTE(DRIVER(MemRelease), " %p", memory); return 0; }
int DRIVER(MemRetainAllocationHandle)(void **out, void *pointer)
{
    NOTE(DRIVER(MemRetainAllocationHandle), " %p", pointer);
    *out = (void *)POINTER;
    return 0;
}
int DRIVER(MemGetAllocationPropertiesFromHandle)(void *prop, void *memory)
{
    NOTE(DRIVER(MemGetAllocationPropertiesFromHandle), " %p", memory);
    memset(prop, 0xee, 32);
    for (int i = 0; i < 4; i++)
        PUT(prop, 4 * i, int, 10 + i);
    return 0;
}
int DRIVER(MemAddressReserve)(
    void **out, size_t size, size_t alignment, void *wanted, unsigned long long flags)
{
    NOTE(DRIVER(MemAddressReserve), " %zu %zu %p %llu", size, alignment, wanted, flags);
    *out = (void *)POINTER;
    return 0;
}
int DRIVER(MemAddressFree)(void *pointer, size_t size)
{
    NOTE(DRIVER(MemAddressFree), " %p %zu", pointer, size);
    return 0;
}
int DRIVER(MemMap)(
    void *pointer, size_t size, size_t offset, void *memory, unsigned long long flags)
{
    NOTE(DRIVER(MemMap), " %p %zu %zu %p %llu", pointer, size, offset, memory, flags);
    return 0;
}
int DRIVER(MemUnmap)(void *pointer, size_t size)
{
    NOTE(DRIVER(MemUnmap), " %p %zu", pointer, size);
    return 0;
}
int DRIVER(MemSetAccess)(void *pointer, size_t size, const void *access, size_t count)
{
    NOTE(DRIVER(MemSetAccess), " %p %zu %zu", pointer, size, count);
    for (size_t i = 0; i < count; i++) {
        const char *one = (const char *)access + 12 * i;
        note(" access", " %d %d %d", GET(one, 0), GET(one, 4), GET(one, 8));
    }
    return 0;
}
int DRIVER(MemGetAccess)(unsigned long long *out, const void *location, void *pointer)
{
    NOTE(DRIVER(MemGetAccess), " %d %d %p", GET(location, 0), GET(location, 4), pointer);
    *out = 3;
    return 0;
}
int DRIVER(MemExportToShareableHandle)(void *out, void *memory, int type, unsigned long long flags)
{
    NOTE(DRIVER(MemExportToShareableHandle), " %p %d %llu", memory, type, flags);
    PUT(out, 0, int, 77);
    return 0;
}
int DRIVER(MemImportFromShareableHandle)(void **out, void *given, int type)
{
#if defined(HIP) && HIP < 70100000
    int descriptor = *(int *)given;
#else
    int descriptor = (uintptr_t)given;
#endif
    NOTE(DRIVER(MemImportFromShareableHandle), " %d %d", descriptor, type);
    *out = (void *)POINTER;
    return 0;
}
#endif
