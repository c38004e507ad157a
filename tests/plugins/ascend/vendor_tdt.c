// SPDX-License-Identifier: Apache-2.0
// Stands in for libascendcl with acl_tdt_queue.h: queues and buffers, besides what vendor.c has.
#include "vendor.c"

typedef void *Buffer;

// Queues.
void *acltdtCreateQueueAttr(void) { note(__func__, ""); return (void *)POINTER; }
int acltdtDestroyQueueAttr(const void *attr) { NOTE(" %p", attr); return 0; }
int acltdtSetQueueAttr(void *attr, int type, size_t length, const void *value)
{
    NOTE(" %p %d %zu %u", attr, type, length, *(const uint32_t *)value);
    return 0;
}
int acltdtCreateQueue(const void *attr, uint32_t *queue)
{
    NOTE(" %p", attr);
    *queue = 4000;
    return 0;
}
int acltdtDestroyQueue(uint32_t queue) { NOTE(" %u", queue); return 0; }
int acltdtGrantQueue(uint32_t queue, int32_t pid, uint32_t permission, int32_t timeout)
{
    NOTE(" %u %d %u %d", queue, pid, permission, timeout);
    return 0;
}
int acltdtAttachQueue(uint32_t queue, int32_t timeout, uint32_t *permission)
{
    NOTE(" %u %d", queue, timeout);
    *permission = 7;
    return 0;
}
int acltdtEnqueue(uint32_t queue, Buffer buffer, int32_t timeout)
{
    NOTE(" %u %p %d", queue, buffer, timeout);
    return 0;
}
int acltdtDequeue(uint32_t queue, Buffer *buffer, int32_t timeout)
{
    NOTE(" %u %d", queue, timeout);
    *buffer = (void *)POINTER;
    return 0;
}

// Buffers.
int acltdtAllocBuf(size_t size, uint32_t type, Buffer *buffer)
{
    NOTE(" %zu %u", size, type);
    *buffer = (void *)POINTER;
    return 0;
}
int acltdtFreeBuf(Buffer buffer) { NOTE(" %p", buffer); return 0; }
int acltdtGetBufData(const Buffer buffer, void **data, size_t *size)
{
    NOTE(" %p", buffer);
    *data = (void *)(POINTER + 64);
    *size = (size_t)1 << 33;
    return 0;
}
int acltdtSetBufDataLen(Buffer buffer, size_t length) { NOTE(" %p %zu", buffer, length); return 0; }
int acltdtGetBufDataLen(Buffer buffer, size_t *length)
{
    NOTE(" %p", buffer);
    *length = (size_t)1 << 33;
    return 0;
}
int acltdtSetBufUserData(Buffer buffer, const void *data, size_t size, size_t offset)
{
    NOTE(" %p %.4s %zu %zu", buffer, (const char *)data, size, offset);
    return 0;
}
int acltdtGetBufUserData(const Buffer buffer, void *data, size_t size, size_t offset)
{
    NOTE(" %p %zu %zu", buffer, size, offset);
    memset(data, 'u', size);
    return 0;
}
