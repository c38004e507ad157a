/* SPDX-License-Identifier: Apache-2.0
 *
 * What the programs share. They are C and C++ at once, and are compiled against this project's
 * declarations or, with VENDOR_HEADERS, against Huawei's own.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef VENDOR_HEADERS
#include "acl/acl.h"
#include "acl/acl_tdt_queue.h"
#ifdef __cplusplus
extern "C" {
#endif
/* Of the vendor's runtime, whose headers the wheel lacks. */
int32_t rtMemGrpCreate(const char *name, const void *cfg);
int32_t rtMemGrpAddProc(const char *name, int32_t pid, const void *attr);
#ifdef __cplusplus
}
#endif
#else
#ifdef __cplusplus
extern "C" {
#endif
#include "types.h"
/* What is used comes behind its types. */
#include "functions.h"
aclDataBuffer *aclCreateDataBuffer(void *data, size_t size);
aclError aclDestroyDataBuffer(const aclDataBuffer *dataBuffer);
aclError aclUpdateDataBuffer(aclDataBuffer *dataBuffer, void *data, size_t size);
void *aclGetDataBufferAddr(const aclDataBuffer *dataBuffer);
size_t aclGetDataBufferSizeV2(const aclDataBuffer *dataBuffer);
size_t aclDataTypeSize(aclDataType dataType);
float aclFloat16ToFloat(aclFloat16 value);
aclFloat16 aclFloatToFloat16(float value);
void aclAppLog(aclLogLevel logLevel, const char *func, const char *file, uint32_t line,
               const char *fmt, ...);
aclError aclrtDestroyLabel(void *label);
#ifdef __cplusplus
}
#endif
#endif

/* Ends the program where a call answers something else than it should. */
#define CHECK(call, expected)                                                                  \
    do {                                                                                       \
        int answer_ = (int)(call);                                                             \
        if (answer_ != (expected)) {                                                           \
            const char *text_ = aclGetRecentErrMsg();                                          \
            fprintf(stderr, "%s:%d: %s is %d, not %d: %s\n", __FILE__, __LINE__, #call,        \
                    answer_, (expected), text_ ? text_ : "no text");                           \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)
#define OK(call) CHECK(call, ACL_SUCCESS)
#define TRUE(condition) CHECK(!(condition), 0)

static inline void send_all(int descriptor, const void *data, size_t nbytes)
{
    if (write(descriptor, data, nbytes) != (ssize_t)nbytes)
        exit(2);
}

static inline void receive_all(int descriptor, void *data, size_t nbytes)
{
    for (size_t done = 0; done < nbytes;) {
        ssize_t more = read(descriptor, (char *)data + done, nbytes - done);
        if (more <= 0)
            exit(3);
        done += (size_t)more;
    }
}

static inline aclrtPhysicalMemProp device_memory(uint32_t device)
{
    aclrtPhysicalMemProp prop;
    memset(&prop, 0, sizeof prop);
    prop.handleType = ACL_MEM_HANDLE_TYPE_NONE;
    prop.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
    prop.memAttr = ACL_HBM_MEM_HUGE;
    prop.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

/* Maps a handle at addresses of its own. */
static inline void *map_whole(aclrtDrvMemHandle handle, size_t nbytes)
{
    void *address = NULL;
    OK(aclrtReserveMemAddress(&address, nbytes, 0, NULL, 0));
    OK(aclrtMapMem(address, nbytes, 0, handle, 0));
    return address;
}

static inline void write_text(void *address, const char *text)
{
    OK(aclrtMemcpy(address, strlen(text) + 1, text, strlen(text) + 1,
                   ACL_MEMCPY_HOST_TO_DEVICE));
}

static inline int has_text(const void *address, const char *text)
{
    char found[64] = "";
    OK(aclrtMemcpy(found, sizeof found, address, strlen(text) + 1, ACL_MEMCPY_DEVICE_TO_HOST));
    return !strcmp(found, text);
}

#endif
